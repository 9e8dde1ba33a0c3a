// The real binary with few descriptors meets more connections than it can have, and serves whoever comes after.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "coordinator/service/probe.h"
#include "coordinator/testing/coordinator_process.h"
#include "coordinator/testing/http_get.h"
#include "machine/clock.h"

namespace tacc::coordinator {
namespace {

using ::testing::HasSubstr;

constexpr int kMaxOpenFiles = 128;

// A connection that says nothing.
int Connect(const std::string& address) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(std::stoi(address.substr(address.rfind(':') + 1)));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  return fd;
}

bool IsServed(const std::string& address) {
  return WaitUntil([&] { return !TestClient(address).MetricsAddress().empty(); });
}

TEST(ConnectionsTest, IdleOnesTakeNoMoreThanTheirShare) {
  CoordinatorProcess coordinator({"--metrics-listen", "127.0.0.1:0"}, kMaxOpenFiles);
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  TestClient early(coordinator.address());
  const std::string metrics = early.MetricsAddress();
  EXPECT_THAT(HttpGet(metrics, "/healthz"), HasSubstr(" 200 "));
  EXPECT_THAT(HttpGet(metrics, "/readyz"), HasSubstr(" 200 "));
  std::vector<int> idle;
  for (int i = 0; i < 2 * kMaxOpenFiles; ++i) idle.push_back(Connect(coordinator.address()));
  // Those that said nothing for longest make room for whoever comes, and a compilation has its pipes.
  EXPECT_TRUE(IsServed(coordinator.address()));
  EXPECT_TRUE(early.Submit(TestSpec("toy", coordinator.dir().path() + "/runs", 1)));
  EXPECT_THAT(HttpGet(metrics, "/healthz"), HasSubstr(" 200 "));
  EXPECT_THAT(HttpGet(metrics, "/readyz"), HasSubstr(" 200 "));
  for (const int fd : idle) close(fd);
}

TEST(ConnectionsTest, ClosedAtOnceLeaveThePortOpen) {
  CoordinatorProcess coordinator({"--metrics-listen", "127.0.0.1:0"}, kMaxOpenFiles);
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  for (int i = 0; i < 1500; ++i) close(Connect(coordinator.address()));
  EXPECT_TRUE(IsServed(coordinator.address()));
}

// What cannot be stored is not decided: not ready, though a restart would not help.
TEST(ReadinessTest, WaitsForTheDisk) {
  CoordinatorProcess coordinator({"--metrics-listen", "127.0.0.1:0"});
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  TestClient client(coordinator.address());
  const std::string metrics = client.MetricsAddress();
  ASSERT_NO_FATAL_FAILURE(coordinator.LimitFiles(4096));
  std::thread submit([&] { client.Submit(TestSpec("toy", coordinator.dir().path() + "/runs", 1)); });
  EXPECT_TRUE(WaitUntil([&] { return HttpGet(metrics, "/readyz").find(" 503 ") != std::string::npos; }));
  EXPECT_THAT(HttpGet(metrics, "/healthz"), HasSubstr(" 200 "));
  ASSERT_NO_FATAL_FAILURE(coordinator.LimitFiles(RLIM_INFINITY));
  submit.join();
  EXPECT_TRUE(WaitUntil([&] { return HttpGet(metrics, "/readyz").find(" 200 ") != std::string::npos; }));
}

TEST(HealthTest, SilentConnectionsKeepNobodyWaiting) {
  CoordinatorProcess coordinator({"--metrics-listen", "127.0.0.1:0"});
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  const std::string metrics = TestClient(coordinator.address()).MetricsAddress();
  std::vector<int> idle;
  for (int i = 0; i < 40; ++i) idle.push_back(Connect(metrics));
  const double start = SteadySeconds();
  EXPECT_THAT(HttpGet(metrics, "/healthz"), HasSubstr(" 200 "));
  EXPECT_LT(SteadySeconds() - start, 2);
  for (const int fd : idle) close(fd);
}

// One that has no descriptor left takes no connection, and a restart would help.
TEST(HealthTest, WhoTakesNoConnectionIsNotHealthy) {
  CoordinatorProcess coordinator({"--metrics-listen", "127.0.0.1:0"});
  ASSERT_NO_FATAL_FAILURE(coordinator.Start(""));
  const std::string metrics = TestClient(coordinator.address()).MetricsAddress();
  // The connection must be accepted before the limit holds, which only time tells.
  const auto health_without_descriptors = [&] {
    const int fd = HttpConnect(metrics);
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // And what was found before is no longer believed.
    coordinator.LimitDescriptors(3);
    std::string text = HttpAsk(fd, "/healthz");
    coordinator.LimitDescriptors(kMaxOpenFiles);
    return text;
  };
  std::string text;
  EXPECT_TRUE(WaitUntil([&] {
    text = health_without_descriptors();
    return !text.empty();
  }));
  EXPECT_THAT(text, HasSubstr(" 503 "));
  EXPECT_THAT(text, HasSubstr(coordinator.address() + " does not answer"));
  EXPECT_TRUE(WaitUntil([&] { return HttpGet(metrics, "/healthz").find(" 200 ") != std::string::npos; }));
}

TEST(SharedProbeTest, ManyWhoAskMakeFewCalls) {
  double now = 100;
  int calls = 0;
  absl::Status found = absl::OkStatus();
  SharedProbe probe(
      [&] {
        ++calls;
        return found;
      },
      [&now] { return now; });
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(probe.Ask().ok());
  EXPECT_EQ(calls, 1);
  found = absl::UnavailableError("gone");
  now += SharedProbe::kSeconds / 2;
  EXPECT_TRUE(probe.Ask().ok());
  now += SharedProbe::kSeconds;
  EXPECT_FALSE(probe.Ask().ok());
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace tacc::coordinator
