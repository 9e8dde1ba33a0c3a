#include "worker/rank/session/client_link.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <ctime>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"
#include "worker/rank/session/testing/client_link_fixture.h"
#include "worker/rank/session/testing/test_client.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(ClientLinkTest, WelcomesAClientAndCarriesItsCommandsOnce) {
  TestClient client(endpoint());
  const json welcome = client.Hello(endpoint(), "a");
  EXPECT_EQ(welcome["step"], 3);
  EXPECT_EQ(welcome["serial"], 0);
  EXPECT_EQ(welcome["inputs"][0]["name"], "tokens");
  EXPECT_EQ(client.bytes, "loader");
  json step = Step(1);
  step["state_bytes"] = 3;
  client.Send(step, std::string("0123456789abcdef") + "pos");
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(command->step, 3);
  EXPECT_EQ(command->state, "pos");
  EXPECT_EQ(std::string(command->tensors[1][0], 8), "89abcdef");
  link_->Take(command);
  link_->Answer({{"loss", 2.5}}, "out");
  EXPECT_EQ(client.Receive()["loss"], 2.5);
  EXPECT_EQ(client.bytes, "out");
  // Sent again it is answered from memory.
  client.Send(Step(1), "0123456789abcdef");
  EXPECT_EQ(client.Receive()["loss"], 2.5);
  EXPECT_EQ(link_->Next(absl::ZeroDuration()), nullptr);
}

TEST_F(ClientLinkTest, ReadsBatchesFromTheClientsMemory) {
  const int fd = memfd_create("test", MFD_ALLOW_SEALING);
  ASSERT_EQ(ftruncate(fd, 4096), 0);
  ASSERT_EQ(pwrite(fd, "abcdefghABCDEFGH", 16, 100), 16);
  {
    TestClient client(endpoint());
    EXPECT_THAT(client.Hello(endpoint(), "a", fd).value("error", ""), HasSubstr("F_SEAL_SHRINK"));
  }
  ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
  TestClient client(endpoint());
  client.Hello(endpoint(), "a", fd);
  json step = Step(1);
  step["offsets"] = {{108}, {100}};
  client.Send(step);
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(std::string(command->tensors[0][0], 8), "ABCDEFGH");
  EXPECT_EQ(std::string(command->tensors[1][0], 8), "abcdefgh");
  link_->Take(command);
  link_->Answer({});
  step["serial"] = 2;
  step["offsets"] = {{4089}, {0}};
  client.Receive();
  client.Send(step);
  EXPECT_THAT(client.Receive().value("error", ""), HasSubstr("8 bytes at 4089 is not inside the 4096 bytes"));
  close(fd);
}

TEST_F(ClientLinkTest, AConnectionThatBreaksInACommandLosesNothing) {
  auto first = std::make_unique<TestClient>(endpoint());
  first->Hello(endpoint(), "a");
  first->Send(Step(1), "0123456789abcdef");
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  link_->Take(command);
  first.reset();
  // It is told that it may go on when the command is done.
  TestClient again(endpoint());
  again.Send({{"hello", true}, {"protocol", 1}, {"token", endpoint().token}, {"client", "a"}});
  absl::SleepFor(absl::Milliseconds(50));
  link_->Answer({{"loss", 1.5}});
  EXPECT_EQ(again.Receive()["serial"], 1);
  again.Send(Step(1), "0123456789abcdef");
  EXPECT_EQ(again.Receive()["loss"], 1.5);
  EXPECT_EQ(link_->Next(absl::ZeroDuration()), nullptr);
}

TEST_F(ClientLinkTest, ACommandSentAgainBeforeItIsTakenIsCarriedOutOnce) {
  auto first = std::make_unique<TestClient>(endpoint());
  first->Hello(endpoint(), "a");
  first->Send(Step(1), "0123456789abcdef");
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  first.reset();
  TestClient again(endpoint());
  again.Hello(endpoint(), "a");
  again.Send(Step(1), "0123456789abcdef");
  const auto same = link_->Next(kSoon);
  ASSERT_NE(same, nullptr);
  EXPECT_EQ(same->name, command->name);
  // Other ranks may have found out before that all have it.
  link_->Take(command);
  again.Send(Step(1), "0123456789abcdef");
  absl::SleepFor(absl::Milliseconds(50));
  link_->Answer({{"loss", 1.5}});
  EXPECT_EQ(again.Receive()["loss"], 1.5);
  EXPECT_EQ(link_->Next(absl::Milliseconds(50)), nullptr);
}

TEST_F(ClientLinkTest, ALaterClientTakesThePlaceAndCountsAnew) {
  TestClient first(endpoint());
  first.Hello(endpoint(), "a");
  first.Send(Step(7), "0123456789abcdef");
  ASSERT_NE(link_->Next(kSoon), nullptr);
  TestClient second(endpoint());
  EXPECT_EQ(second.Hello(endpoint(), "b")["serial"], 0);
  EXPECT_EQ(first.Receive()["code"], "replaced");
  EXPECT_EQ(link_->Next(absl::ZeroDuration()), nullptr) << "what the first one asked for is not begun";
  second.Send(Step(1), "0123456789abcdef");
  EXPECT_NE(link_->Next(kSoon), nullptr);
  EXPECT_EQ(link_->WithoutClient(), absl::ZeroDuration());
}

TEST_F(ClientLinkTest, NothingIsReadOfWhoDoesNotShowTheToken) {
  TestClient stranger(endpoint());
  stranger.Send({{"hello", true}, {"protocol", 1}, {"token", std::string(32, 'f')}, {"client", "a"}});
  EXPECT_THAT(stranger.Receive().value("error", ""), HasSubstr("the token is not that of this attempt"));
  EXPECT_TRUE(stranger.Receive().is_null());
  TestClient large(endpoint());
  large.Send({{"hello", true}, {"token", endpoint().token}, {"x", std::string(5000, 'x')}});
  EXPECT_THAT(large.Receive().value("error", ""), HasSubstr("wanted 1 to 4096"));
  TestClient heavy(endpoint());
  heavy.Send({{"hello", true}, {"token", endpoint().token}}, std::string(100, 'x'));
  EXPECT_THAT(heavy.Receive().value("error", ""), HasSubstr("at most 0 may be"));
  TestClient old(endpoint());
  old.Send({{"hello", true}, {"protocol", 9}, {"token", endpoint().token}, {"client", "a"}});
  EXPECT_THAT(old.Receive().value("error", ""), HasSubstr("protocol 9, the rank 1"));
  EXPECT_GT(link_->WithoutClient(), absl::ZeroDuration());
}

// The rank's end of a client's TCP connection, which is in this process too.
int AcceptedFrom(int client) {
  const auto name = [](int fd, decltype(&getsockname) of) {
    sockaddr_in address = {};
    socklen_t size = sizeof(address);
    return of(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? ntohs(address.sin_port) : 0;
  };
  for (int fd = 0; fd < 1024; ++fd) {
    if (fd != client && name(fd, getpeername) == name(client, getsockname)) return fd;
  }
  return -1;
}

TEST_F(ClientLinkTest, AsksAQuietClientOverTcpWhetherItIsThere) {
  TestClient client(endpoint(), /*is_local=*/false);
  client.Hello(endpoint(), "a");
  int is_on = 0;
  socklen_t size = sizeof(is_on);
  ASSERT_EQ(getsockopt(AcceptedFrom(client.fd()), SOL_SOCKET, SO_KEEPALIVE, &is_on, &size), 0);
  EXPECT_EQ(is_on, 1);
}

class LocalClientLinkTest : public ClientLinkTest {
 protected:
  std::string LocalFolder() const override { return directory_.path(); }
  TestDirectory directory_;
};

TEST_F(LocalClientLinkTest, HasASocketOfItsUserAndNoPort) {
  EXPECT_EQ(endpoint().host, "");
  EXPECT_EQ(endpoint().port, 0);
  EXPECT_EQ(endpoint().local.substr(0, directory_.path().size() + 1), directory_.path() + "/");
  struct stat info = {};
  ASSERT_EQ(stat(endpoint().local.c_str(), &info), 0);
  EXPECT_TRUE(S_ISSOCK(info.st_mode));
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  TestClient client(endpoint());
  EXPECT_EQ(client.Hello(endpoint(), "a")["step"], 3);
  client.Send(Step(1), "0123456789abcdef");
  EXPECT_NE(link_->Next(kSoon), nullptr);
}

TEST_F(ClientLinkTest, ThoseWithoutATokenKeepNobodyOut) {
  TestClient attached(endpoint());
  attached.Hello(endpoint(), "a");
  for (const bool is_local : {true, false}) {
    std::vector<std::unique_ptr<TestClient>> idle;
    for (size_t i = 0; i < ClientLink::kMaxWaiting; ++i)
      idle.push_back(std::make_unique<TestClient>(endpoint(), is_local));
    const absl::Time begin = absl::Now();
    // The one that has the token stays, and comes.
    attached.Send(Step(is_local ? 1 : 2), "0123456789abcdef");
    ASSERT_NE(link_->Next(kSoon), nullptr);
    link_->Take(link_->Next(kSoon));
    link_->Answer({});
    EXPECT_TRUE(attached.Receive().is_object());
    TestClient next(endpoint(), is_local);
    next.Send({{"hello", true}, {"protocol", 0}, {"token", endpoint().token}});
    EXPECT_THAT(next.Receive().value("error", ""), HasSubstr("protocol 0"));
    EXPECT_LT(absl::Now() - begin, absl::Seconds(4)) << "not only when the others' time is over";
    EXPECT_TRUE(idle.front()->Receive().is_null()) << "the oldest is gone";
    idle.back()->Send({{"hello", true}, {"protocol", 0}, {"token", endpoint().token}});
    EXPECT_TRUE(idle.back()->Receive().is_object()) << "the newest is not";
  }
}

TEST_F(ClientLinkTest, OneThatDoesNotReadKeepsNobodyOut) {
  const std::string large(64 << 20, 'x');
  const absl::Time begin = absl::Now();
  TestClient deaf(endpoint());
  deaf.Hello(endpoint(), "a");
  for (int serial = 1; serial <= 2; ++serial) {
    deaf.Send(Step(serial), "0123456789abcdef");
    const auto command = link_->Next(kSoon);
    ASSERT_NE(command, nullptr);
    link_->Take(command);
    link_->Answer({{"loss", serial}}, large);  // The rank goes on.
  }
  // With two answers to read it is not heard.
  deaf.Send(Step(3), "0123456789abcdef");
  EXPECT_EQ(link_->Next(absl::Milliseconds(200)), nullptr);
  EXPECT_EQ(deaf.Receive()["loss"], 1);
  EXPECT_NE(link_->Next(kSoon), nullptr);
  TestClient next(endpoint());
  EXPECT_EQ(next.Hello(endpoint(), "b")["step"], 3);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(10));
}

// What copies and prints such a header would call itself for each level.
TEST_F(ClientLinkTest, ADeepHeaderIsRefused) {
  const auto deep = [](int levels, const std::string& begin) {
    const std::string text = begin + std::string(levels, '[') + std::string(levels, ']') + "}";
    const uint32_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + text;
  };
  TestClient stranger(endpoint());
  stranger.SendRaw(deep(2000, "{\"protocol\": "));
  EXPECT_THAT(stranger.Receive().value("error", ""), HasSubstr("more than 8 deep"));
  TestClient client(endpoint());
  client.Hello(endpoint(), "a");
  client.SendRaw(deep(500'000, "{\"command\": \"discard\", \"serial\": 1, \"x\": "));
  EXPECT_THAT(client.Receive().value("error", ""), HasSubstr("more than 8 deep"));
  EXPECT_TRUE(client.Receive().is_null());
  TestClient again(endpoint());
  again.Hello(endpoint(), "a");
  again.SendRaw(deep(8, "{\"command\": \"discard\", \"serial\": 1, \"x\": "));
  EXPECT_NE(link_->Next(kSoon), nullptr);
}

TEST_F(ClientLinkTest, CommandsSayWhatTheUpdateTakesAndWhichStates) {
  TestClient client(endpoint());
  client.Hello(endpoint(), "a");
  const auto next = [&](json header) {
    client.Send(header);
    const auto command = link_->Next(kSoon);
    EXPECT_NE(command, nullptr);
    if (command == nullptr) return command;
    link_->Take(command);
    link_->Answer({});
    client.Receive();
    return command;
  };
  const auto update = next({{"command", "update"},
                            {"serial", 1},
                            {"learning_rates", {{0.01, 0.005}}},
                            {"momenta", {{0.01, 0.85}}},
                            {"gradient_factor", 2},
                            {"max_grad_norm", 0.5},
                            {"optimizer_step", 40}});
  ASSERT_NE(update, nullptr);
  EXPECT_THAT(update->update.learning_rates, testing::ElementsAre(std::pair(0.01, 0.005)));
  EXPECT_THAT(update->update.momenta, testing::ElementsAre(std::pair(0.01, 0.85)));
  EXPECT_EQ(update->update.gradient_factor, 2);
  EXPECT_EQ(update->update.max_grad_norm, 0.5);
  EXPECT_EQ(update->update.optimizer_step, 40);
  const auto plain = next({{"command", "update"}, {"serial", 2}});
  ASSERT_NE(plain, nullptr);
  EXPECT_EQ(plain->update.gradient_factor, 1);
  EXPECT_FALSE(plain->update.max_grad_norm.has_value());
  EXPECT_FALSE(plain->update.optimizer_step.has_value());
  EXPECT_EQ(next({{"command", "discard"}, {"serial", 3}})->kind, ClientCommand::Kind::kDiscard);
  EXPECT_THAT(next({{"command", "read"}, {"serial", 4}, {"states", {"weights/w"}}})->states,
              testing::ElementsAre("weights/w"));
  EXPECT_EQ(next({{"command", "load"}, {"serial", 5}, {"path", "/a"}})->path, "/a");
}

TEST_F(ClientLinkTest, AnUpdateThatWouldMakeNoNumbersIsRefused) {
  TestClient client(endpoint());
  client.Hello(endpoint(), "a");
  int serial = 0;
  const auto why = [&](const std::string& fields) {
    const json header = json::parse(absl::StrCat(R"({"command": "update", "serial": )", ++serial, fields, "}"));
    client.Send(header);
    const auto command = link_->Next(kSoon);
    EXPECT_NE(command, nullptr) << fields;
    if (command == nullptr) return std::string("none");
    link_->Take(command);
    link_->Answer({});
    client.Receive();
    return WhyNot(command->update);
  };
  EXPECT_EQ(why(""), "");
  EXPECT_EQ(why(R"(, "optimizer_step": 0, "max_grad_norm": 0, "gradient_factor": -2)"), "");
  EXPECT_EQ(why(R"(, "max_grad_norm": 3e38, "learning_rates": [[0.5, 0], [0.1, 5]])"), "");
  EXPECT_THAT(why(R"(, "optimizer_step": -1)"), HasSubstr("optimizer_step is -1; it counts updates, from 0"));
  for (const char* step : {"9007199254740993", "9223372036854775808", "18446744073709551615", "-9223372036854775808"})
    EXPECT_THAT(why(absl::StrCat(", \"optimizer_step\": ", step)), HasSubstr("it counts updates")) << step;
  for (const char* norm : {"-1", "-1e-30", "1e300"})
    EXPECT_THAT(why(absl::StrCat(", \"max_grad_norm\": ", norm)), HasSubstr("max_grad_norm is ")) << norm;
  for (const char* factor : {"1e300", "-1e39"})
    EXPECT_THAT(why(absl::StrCat(", \"gradient_factor\": ", factor)), HasSubstr("gradient_factor is ")) << factor;
  for (const char* rates : {"[[0.5, 1e300]]", "[[1, 1], [1e-10, 1e30]]", "[[0, 1]]", "[[0, 0]]"})
    EXPECT_THAT(why(absl::StrCat(", \"learning_rates\": ", rates)), HasSubstr("a learning rate is ")) << rates;
  EXPECT_EQ(why(R"(, "momenta": [[0.5, 0], [0.1, 0.99]])"), "");
  for (const char* momenta : {"[[0.5, 1]]", "[[0.5, -0.1]]", "[[1, 0.5], [2, 1e300]]"})
    EXPECT_THAT(why(absl::StrCat(", \"momenta\": ", momenta)), HasSubstr("a momentum is ")) << momenta;
  UpdateOptions nan;
  nan.max_grad_norm = std::nan("");
  EXPECT_THAT(WhyNot(nan), HasSubstr("max_grad_norm is nan"));
}

// Ranks carry a command out when its name is the same on all of them: all that it says counts.
TEST_F(ClientLinkTest, AnotherUpdateIsAnotherCommand) {
  const auto name = [&](const char* client, double factor) {
    TestClient test(endpoint());
    test.Hello(endpoint(), client);
    test.Send({{"command", "update"}, {"serial", 1}, {"gradient_factor", factor}});
    const auto command = link_->Next(kSoon);
    EXPECT_NE(command, nullptr);
    return command == nullptr ? 0 : command->name;
  };
  const uint64_t first = name("a", 1.5);
  EXPECT_EQ(name("a", 1.5), first);
  EXPECT_NE(name("a", 2.5), first);
}

TEST_F(ClientLinkTest, BrokenFramesEndTheConnectionWithAWord) {
  EXPECT_THAT(ErrorOf({{"command", "dance"}, {"serial", 1}}), HasSubstr("\"dance\" is no command"));
  EXPECT_THAT(ErrorOf({{"serial", 1}}), HasSubstr("without \"command\""));
  EXPECT_THAT(ErrorOf({{"command", "save"}}), HasSubstr("without \"serial\""));
  EXPECT_THAT(ErrorOf({{"command", "save"}, {"serial", -1}}), HasSubstr("wanted a whole number"));
  EXPECT_THAT(ErrorOf(Step(1), "short"), HasSubstr("8 bytes at 0 is not inside the 5 bytes"));
  EXPECT_THAT(ErrorOf(Step(1), std::string(17, 'x')), HasSubstr("17 bytes of inputs; the rank reads 16"));
  json huge = Step(1);
  huge["bytes"] = uint64_t{1} << 62;
  EXPECT_THAT(ErrorOf(huge), HasSubstr("at most 67108896 may be"));
  json wrong = Step(1);
  wrong["micro_batches"] = uint64_t{1} << 40;
  EXPECT_THAT(ErrorOf(wrong, std::string(16, 'x')), HasSubstr("a step has 2"));
  wrong = Step(1);
  wrong["offsets"] = {{0}, {0}};
  EXPECT_THAT(ErrorOf(wrong), HasSubstr("in memory that was given"));
  wrong = Step(1);
  wrong["state_bytes"] = 20;
  EXPECT_THAT(ErrorOf(wrong, std::string(16, 'x')), HasSubstr("a state of 20 bytes"));
  json update = {{"command", "update"}, {"serial", 1}, {"learning_rates", {0.1}}};
  EXPECT_THAT(ErrorOf(update), HasSubstr("no list of peaks with what they are now"));
  update = {{"command", "update"}, {"serial", 1}, {"momenta", {{0.1, "much"}}}};
  EXPECT_THAT(ErrorOf(update), HasSubstr("\"momenta\" is \"much\"; wanted a finite number"));
  update = {{"command", "update"}, {"serial", 1}, {"max_grad_norm", "much"}};
  EXPECT_THAT(ErrorOf(update), HasSubstr("\"max_grad_norm\" is \"much\"; wanted a finite number"));
  update = {{"command", "update"}, {"serial", 1}, {"optimizer_step", 1.5}};
  EXPECT_THAT(ErrorOf(update), HasSubstr("\"optimizer_step\" is 1.5; wanted a whole number"));
  update = {{"command", "update"}, {"serial", 1}, {"learning_rates", "all"}};
  EXPECT_THAT(ErrorOf(update), HasSubstr("\"learning_rates\" is no list"));
  EXPECT_THAT(ErrorOf({{"command", "read"}, {"serial", 1}, {"states", "w"}}), HasSubstr("no list of names"));
  EXPECT_THAT(ErrorOf({{"command", "load"}, {"serial", 1}, {"path", 7}}), HasSubstr("\"path\" is no text"));
  TestClient client(endpoint());
  client.Hello(endpoint(), "a");
  client.SendRaw(std::string(4, '\xff'));
  EXPECT_THAT(client.Receive().value("error", ""), HasSubstr("a frame's header of 4294967295 bytes"));
  TestClient other(endpoint());
  other.Hello(endpoint(), "a");
  other.SendRaw(std::string("\x03\0\0\0[1]", 7));
  EXPECT_THAT(other.Receive().value("error", ""), HasSubstr("no JSON object"));
}

TEST_F(ClientLinkTest, MicroBatchesMayHaveDifferentLengths) {
  TestClient client(endpoint());
  const json welcome = client.Hello(endpoint(), "a");
  EXPECT_EQ(welcome["seq_len"], 2);
  EXPECT_EQ(welcome["inputs"][0]["dims"], json({2}));
  EXPECT_EQ(welcome["buckets"].size(), 1u);
  EXPECT_EQ(welcome["buckets"][0]["seq_len"], 4);
  EXPECT_EQ(welcome["buckets"][0]["inputs"][0]["dims"], json({4}));
  json step = Step(1);
  step["lengths"] = {4, 2};
  client.Send(step, std::string(16, 'l') + std::string(8, 's'));
  const auto command = link_->Next(kSoon);
  ASSERT_NE(command, nullptr);
  EXPECT_EQ(command->buckets, (std::vector<size_t>{1, 0}));
  EXPECT_EQ(command->tensors[0][0][15], 'l');
  EXPECT_EQ(command->tensors[1][0][7], 's');
}

TEST_F(ClientLinkTest, OtherLengthsAreRefused) {
  json step = Step(1);
  step["lengths"] = {4, 3};
  EXPECT_EQ(ErrorOf(step, std::string(24, 's')),
            "a micro-batch of length 3; the job is compiled for 2, 4 (data.seq_len and data.client.buckets)");
  step["lengths"] = {4};
  EXPECT_EQ(ErrorOf(step), "\"lengths\" is no list of a length for each micro-batch");
  step["lengths"] = {4, 2};
  EXPECT_EQ(ErrorOf(step, std::string(16, 's')),
            "input \"tokens\" of 8 bytes at 16 is not inside the 16 bytes that were given");
}

TEST_F(ClientLinkTest, ARankWithoutADescriptorWaitsForOneAndDoesNotSpin) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int lowest_free = dup(0);
  close(lowest_free);
  rlimit of_client = before;
  of_client.rlim_cur = lowest_free + 1;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &of_client), 0);
  TestClient client(endpoint());
  const std::clock_t begin = std::clock();
  absl::SleepFor(absl::Milliseconds(500));
  const double busy_seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_LT(busy_seconds, 0.1);
  EXPECT_EQ(client.Hello(endpoint(), "a")["step"], 3);
}

}  // namespace
}  // namespace tacc::worker
