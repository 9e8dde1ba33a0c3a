#ifndef TACC_WORKER_RANK_SESSION_TESTING_CLIENT_LINK_FIXTURE_H_
#define TACC_WORKER_RANK_SESSION_TESTING_CLIENT_LINK_FIXTURE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/rank/session/client_link.h"
#include "worker/rank/session/testing/test_client.h"

namespace tacc::worker {

inline constexpr absl::Duration kSoon = absl::Seconds(10);

class ClientLinkTest : public ::testing::Test {
 protected:
  virtual int64_t InputBytes() const { return 8; }
  virtual std::string LocalFolder() const { return ""; }
  // Two micro-batches of an input of numbers of four bytes.
  void SetUp() override {
    ClientInput input;
    input.name = "tokens";
    input.type = {graph::DType::kI32, {InputBytes() / 4}};
    input.ranges = {{0, InputBytes() / 4}};
    input.bytes = InputBytes();
    ClientLink::Options options;
    options.advertise = "127.0.0.1";
    options.local_folder = LocalFolder();
    ClientInput longer = input;
    longer.type.dims = {InputBytes() / 2};
    longer.ranges = {{0, InputBytes() / 2}};
    longer.bytes = 2 * InputBytes();
    options.buckets = {{2, {input}}, {4, {longer}}};
    options.num_micro_batches = 2;
    options.welcome = [](std::string* bytes) {
      *bytes = "loader";
      return nlohmann::json{{"step", 3}};
    };
    absl::StatusOr<std::unique_ptr<ClientLink>> link = ClientLink::Open(std::move(options));
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }
  const ClientEndpoint& endpoint() const { return link_->endpoint(); }
  static nlohmann::json Step(int serial) {
    return {{"command", "step"}, {"serial", serial}, {"step", 3}, {"micro_batches", 2}};
  }
  // What the rank says to a frame of a client that it has welcomed; the connection is over behind it.
  std::string ErrorOf(const nlohmann::json& header, const std::string& bytes = "") {
    TestClient client(endpoint());
    client.Hello(endpoint(), "a");
    client.Send(header, bytes);
    const nlohmann::json answer = client.Receive();
    EXPECT_TRUE(client.Receive().is_null());
    EXPECT_EQ(link_->Next(absl::ZeroDuration()), nullptr);
    return answer.is_object() ? answer.value("error", "") : "";
  }

  std::unique_ptr<ClientLink> link_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_TESTING_CLIENT_LINK_FIXTURE_H_
