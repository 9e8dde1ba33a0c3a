// The real binary with few descriptors meets more connections than it can have, and serves whoever comes after.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "coordinator/testing/coordinator_process.h"
#include "coordinator/testing/http_get.h"

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
  // A new client is turned away now, and HTTP says so; who is there already is served, a compilation's pipes included.
  EXPECT_THAT(HttpGet(metrics, "/healthz"), HasSubstr(" 503 "));
  EXPECT_TRUE(early.Submit(TestSpec("toy", coordinator.dir().path() + "/runs", 1)));
  for (const int fd : idle) close(fd);
  EXPECT_TRUE(IsServed(coordinator.address()));
  EXPECT_TRUE(WaitUntil([&] { return HttpGet(metrics, "/healthz").find(" 200 ") != std::string::npos; }));
  EXPECT_THAT(HttpGet(metrics, "/readyz"), HasSubstr(" 200 "));
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
  EXPECT_THAT(HttpGet(metrics, "/readyz"), HasSubstr(" 200 "));
}

}  // namespace
}  // namespace tacc::coordinator
