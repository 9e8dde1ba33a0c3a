// To whom a coordinator opens itself, and what it says about that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/service/server.h"
#include "coordinator/testing/fake_daemon.h"

namespace tacc::coordinator {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class ExposureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.version = "0.1.0";
    options_.exposure = ServerOptions::Exposure::kInsecure;
    options_.state_dir = dir_.path() + "/state";
    options_.plan_binary = dir_.Script("tacc-plan", FakePlan(1));
    options_.data_binary = dir_.Script("tacc-data", FakeData());
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
  }
  void TearDown() override { spdlog::set_default_logger(before_); }

  absl::StatusOr<std::unique_ptr<Server>> Start() {
    return Server::Start(options_, &failpoints_, [](const absl::Status&) {});
  }
  // What it logs at its start.
  std::string LogOfStart() {
    log_.str("");
    const auto server = Start();
    EXPECT_TRUE(server.ok()) << server.status();
    return log_.str();
  }

  TestDirectory dir_;
  Failpoints failpoints_;
  ServerOptions options_;
  std::ostringstream log_;
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(ExposureTest, APortNeedsConsentAlsoOnLoopback) {
  options_.exposure = ServerOptions::Exposure::kClosed;
  const auto why = [this] { return std::string(Start().status().message()); };
  for (const char* address : {"127.0.0.1:0", "localhost:0", "[::1]:0", "0.0.0.0:0"}) {
    options_.listen = address;
    const std::string refused = why();
    EXPECT_THAT(refused, testing::StartsWith(absl::StrCat("--listen ", address, ": whoever reaches this port")));
    for (const char* way_out : {"`taccctl up`", "`tacc-coordinator init`", "--insecure"})
      EXPECT_THAT(refused, HasSubstr(way_out));
  }
  options_.listen = "unix:" + dir_.path() + "/local/socket";
  EXPECT_EQ(why(), "");
  options_.metrics_listen = "127.0.0.1:0";
  EXPECT_EQ(why(), "");
  options_.metrics_listen = "0.0.0.0:0";
  EXPECT_THAT(why(), testing::StartsWith("--metrics-listen 0.0.0.0:0: other machines can reach it"));
}

TEST_F(ExposureTest, WhatIsOpenIsSaidAtTheStart) {
  const auto unencrypted = HasSubstr("can run jobs as this user, and nothing is encrypted (--insecure)");
  const auto any_path = HasSubstr("without --allow-path the models, graphs and data of jobs may be wherever");
  options_.listen = "127.0.0.1:0";
  options_.metrics_listen = "0.0.0.0:0";
  const std::string open = LogOfStart();
  EXPECT_THAT(open, HasSubstr("--listen 127.0.0.1:0: whoever reaches this port"));
  EXPECT_THAT(open, unencrypted);
  EXPECT_THAT(open,
              HasSubstr("--metrics-listen 0.0.0.0:0: other machines can reach it, and metrics are not encrypted"));
  EXPECT_THAT(open, any_path);
  EXPECT_THAT(open, HasSubstr("--allow-path DIR for each folder that has them, or --allow-path / if that is meant"));
  options_.metrics_listen = "";
  options_.allow_paths = {"/"};
  const std::string meant = LogOfStart();
  EXPECT_THAT(meant, unencrypted);
  EXPECT_THAT(meant, Not(any_path));
  // Of one user alone.
  options_.allow_paths = {};
  options_.listen = "unix:" + dir_.path() + "/local/socket";
  EXPECT_THAT(LogOfStart(), Not(HasSubstr("warning")));
}

TEST_F(ExposureTest, AJobSaysThatItCameInTheClear) {
  const auto unencrypted = [this](const std::string& listen) {
    options_.listen = listen;
    const auto server = Start();
    EXPECT_TRUE(server.ok()) << server.status();
    const std::string& address = (*server)->address();
    const auto stub = v1::CoordinatorService::NewStub(grpc::CreateChannel(
        absl::StrCat("127.0.0.1", address.substr(address.rfind(':'))), grpc::InsecureChannelCredentials()));
    v1::SubmitRequest request;
    *request.mutable_spec() = TestSpec("toy", dir_.path() + "/runs", 1);
    request.set_request_id("r");
    v1::SubmitResponse response;
    grpc::ClientContext context, again;
    EXPECT_TRUE(stub->Submit(&context, request, &response).ok());
    v1::ListResponse list;
    EXPECT_TRUE(stub->List(&again, {}, &list).ok());
    const auto& lines = response.job().unencrypted();
    EXPECT_THAT(list.jobs(0).unencrypted(), testing::ElementsAreArray(lines));
    return std::vector<std::string>(lines.begin(), lines.end());
  };
  EXPECT_THAT(unencrypted("127.0.0.1:0"), IsEmpty());
  EXPECT_THAT(unencrypted("0.0.0.0:0"),
              ElementsAre("between the coordinator and its workers and clients: not encrypted (gRPC, at 0.0.0.0:0)"));
}

}  // namespace
}  // namespace tacc::coordinator
