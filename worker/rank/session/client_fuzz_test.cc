// Frames as nobody should send them: each is refused or taken, and the rank goes on.
#include <algorithm>
#include <array>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rank/session/client_link.h"
#include "worker/rank/session/testing/test_client.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

const std::array kHeaders = {
    R"({"command": "step", "serial": 7, "step": 3, "micro_batches": 2, "state_bytes": 3, "bytes": 19})",
    R"({"command": "micro_batch", "serial": 8, "step": 3, "micro_batches": 1, "offsets": [[8]]})",
    R"({"command": "update", "serial": 9, "step": 3, "learning_rates": [[0.01, 0.005]], "momenta": [[0.01, 0.9]],
        "gradient_factor": 2, "max_grad_norm": 0.5, "optimizer_step": 40})",
    R"({"command": "forward", "serial": 1, "step": 0, "micro_batches": 1, "outputs": ["logits"], "bytes": 8})",
    R"({"command": "read", "serial": 2, "step": 1, "states": ["weights/w", "\u00e9"]})",
    R"({"command": "load", "serial": 3, "step": 1, "path": "/a"})",
    R"({"command": "step", "serial": 7, "step": 3, "micro_batches": 2, "lengths": [2, 1], "state_bytes": 7, "bytes": 19,
        "packed": [[0], [0]]})",
};
// What a header may be mutated by, beside bytes of any kind.
const std::array kPieces = {"{",       "}",
                            "[",       "]",
                            "\"",      ",",
                            ":",       "null",
                            "-1",      "1e99",
                            "-0",      "1e999",
                            "true",    "[[[[[",
                            "\\ud800", "18446744073709551615",
                            "{}",      "[]",
                            "0",       "2.5",
                            "\"\"",    "-9223372036854775808"};

class Mutator {
 public:
  // A frame: of a header with up to four changes, with a length and bytes that fit most of the time.
  std::string Frame() {
    std::string header = kHeaders[Below(kHeaders.size())];
    for (size_t changes = Below(5); changes > 0; --changes) Change(header);
    uint32_t length = header.size();
    if (Below(20) == 0) length = static_cast<uint32_t>(random_());
    const size_t bytes = Below(4) == 0 ? Below(40) : 19;
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + std::string(bytes, 'x');
  }
  size_t Below(size_t end) { return random_() % end; }

 private:
  void Change(std::string& text) {
    const size_t at = Below(text.size() + 1), count = Below(6);
    switch (Below(4)) {
      case 0:
        text.insert(at, kPieces[Below(kPieces.size())]);
        return;
      case 1:
        text.erase(at, count);
        return;
      case 2:
        text.replace(at, count, kPieces[Below(kPieces.size())]);
        return;
      default:
        if (at < text.size()) text[at] = static_cast<char>(random_());
    }
  }
  std::mt19937_64 random_{20260917};  // The same frames each time.
};

TEST(FrameFuzzTest, ReaderAndParserHoldToWhatTheyAllow) {
  constexpr int kFrames = 10'000;
  constexpr int64_t kMostBytes = 64;
  Mutator mutator;
  int num_whole = 0, num_commands = 0;
  for (int i = 0; i < kFrames; ++i) {
    const std::string frame = mutator.Frame();
    FrameReader reader(1 << 12);
    for (size_t sent = 0; sent < frame.size();) {
      const absl::Span<char> space = reader.Space();
      ASSERT_FALSE(space.empty());
      ASSERT_LE(space.size(), size_t{1 << 12});
      // As the network cuts them.
      const size_t count = 1 + mutator.Below(std::min(space.size(), frame.size() - sent));
      frame.copy(space.data(), count, sent);
      sent += count;
      const absl::StatusOr<bool> is_whole = reader.Read(count, [](const json&) { return kMostBytes; });
      if (!is_whole.ok()) {
        EXPECT_FALSE(is_whole.status().message().empty());
        break;
      }
      if (!*is_whole) continue;
      ++num_whole;
      ClientCommand command;
      const absl::Status parsed = ParseHeader(reader.header, command);
      EXPECT_TRUE(!parsed.ok() || command.serial > 0);
      EXPECT_TRUE(parsed.ok() || absl::IsInvalidArgument(parsed)) << parsed;
      if (parsed.ok()) (void)WhyNot(command.update);
      num_commands += parsed.ok();
      reader.Reset(1 << 12);
    }
  }
  // Mutations are not so wild that all end at the first brace.
  EXPECT_GT(num_whole, kFrames / 10);
  EXPECT_GT(num_commands, kFrames / 20);
  EXPECT_LT(num_commands, num_whole);
}

TEST(FrameFuzzTest, TheRankGoesOnBehindEachOfThem) {
  ClientInput input;
  input.name = "tokens";
  input.type = {graph::DType::kI32, {2}};
  input.ranges = {{0, 2}};
  input.bytes = 8;
  ClientLink::Options options;
  options.advertise = "127.0.0.1";
  ClientInput shorter = input;
  shorter.type.dims = {1};
  shorter.ranges = {{0, 1}};
  shorter.bytes = 4;
  options.buckets = {{2, {input}}, {1, {shorter}}};
  options.num_micro_batches = 2;
  options.welcome = [](std::string*) { return json{{"step", 3}}; };
  const absl::StatusOr<std::unique_ptr<ClientLink>> link = ClientLink::Open(std::move(options));
  ASSERT_TRUE(link.ok()) << link.status();
  Mutator mutator;
  for (int i = 0; i < 1500; ++i) {
    TestClient client((*link)->endpoint());
    // Some say it in place of their hello.
    if (mutator.Below(4) != 0)
      ASSERT_EQ(client.Hello((*link)->endpoint(), "fuzz" + std::to_string(i)).value("step", 0), 3) << i;
    client.SendRaw(mutator.Frame());
    const auto command = (*link)->Next(absl::ZeroDuration());
    if (command == nullptr) continue;
    (*link)->Take(command);
    (*link)->Answer({});
  }
  TestClient last((*link)->endpoint());
  EXPECT_EQ(last.Hello((*link)->endpoint(), "last")["step"], 3);
  last.Send({{"command", "step"}, {"serial", 1}, {"step", 3}, {"micro_batches", 2}}, "0123456789abcdef");
  EXPECT_NE((*link)->Next(absl::Seconds(10)), nullptr);
}

}  // namespace
}  // namespace tacc::worker
