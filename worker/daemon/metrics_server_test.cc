#include "worker/daemon/metrics_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "machine/clock.h"
#include "worker/daemon/network_address.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

int Connect(const MetricsServer& server) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(ParseHostPort(server.address())->port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Empty when nothing comes for 10 s, as long as Prometheus waits.
std::string Get(const MetricsServer& server, const std::string& path) {
  const int fd = Connect(server);
  const timeval patience{10, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  const std::string request = absl::StrCat("GET ", path, " HTTP/1.0\r\n\r\n");
  EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  close(fd);
  return answer;
}

DaemonSnapshot Alive() {
  DaemonSnapshot snapshot;
  snapshot.version = "1.0";
  snapshot.worker = "w0";
  snapshot.loop_time = SteadySeconds();
  return snapshot;
}

TEST(MetricsServerTest, HealthIsTheLoopAndReadinessTheRegistration) {
  auto server = MetricsServer::Start("127.0.0.1:0", 5);
  ASSERT_TRUE(server.ok()) << server.status();
  DaemonSnapshot snapshot = Alive();
  (*server)->Publish(snapshot);
  EXPECT_THAT(Get(**server, "/healthz"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(Get(**server, "/readyz"), StartsWith("HTTP/1.1 503 "));
  snapshot.is_attached = true;
  snapshot.loop_time -= 6;
  (*server)->Publish(snapshot);
  EXPECT_THAT(Get(**server, "/readyz"), StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(Get(**server, "/healthz"), StartsWith("HTTP/1.1 503 "));
  snapshot.is_device_usable = false;
  (*server)->Publish(snapshot);
  EXPECT_THAT(Get(**server, "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(Get(**server, "/other"), HasSubstr(" 404 Not Found"));
}

TEST(MetricsServerTest, SeriesOfTheWorkerAndOfItsRank) {
  auto server = MetricsServer::Start("127.0.0.1:0", 5);
  ASSERT_TRUE(server.ok());
  DaemonSnapshot snapshot = Alive();
  (*server)->Publish(snapshot);
  std::string text = Get(**server, "/metrics");
  EXPECT_THAT(text, HasSubstr("tacc_worker_rank_running{worker=\"w0\"} 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("tacc_rank_")));
  snapshot.job = "job-1";
  snapshot.rank = 1;
  snapshot.steps_done = 7;
  snapshot.rank_metrics = {{"step.loss", 2.5}, {"checkpoint.seconds", 29500}, {"ready.device_memory_used_bytes", 100}};
  (*server)->Publish(snapshot);
  text = Get(**server, "/metrics");
  EXPECT_THAT(text, HasSubstr("tacc_worker_rank_running{worker=\"w0\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("tacc_rank_step{worker=\"w0\",training_job=\"job-1\",rank=\"1\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("tacc_rank_loss{worker=\"w0\",training_job=\"job-1\",rank=\"1\"} 2.5\n"));
  EXPECT_THAT(text, Not(HasSubstr("29500")));
  EXPECT_THAT(text, Not(HasSubstr("tacc_rank_device_idle_ratio")));  // Not on a GPU.
  const std::string memory = "tacc_rank_device_memory_bytes{worker=\"w0\",training_job=\"job-1\",rank=\"1\"} ";
  EXPECT_THAT(text, HasSubstr(memory + "100\n"));
  snapshot.rank_metrics["step.device_memory_used_bytes"] = 120;
  snapshot.rank_metrics["step.device_idle_share"] = 0.25;
  (*server)->Publish(snapshot);
  text = Get(**server, "/metrics");
  EXPECT_THAT(text, HasSubstr(memory + "120\n"));
  EXPECT_THAT(text, Not(HasSubstr(memory + "100\n")));
  EXPECT_THAT(text, HasSubstr("tacc_rank_device_idle_ratio{worker=\"w0\",training_job=\"job-1\",rank=\"1\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("# TYPE tacc_worker_dropped_reports_total counter\n"));
}

TEST(MetricsServerTest, SilentConnectionsKeepNobodyWaiting) {
  auto server = MetricsServer::Start("127.0.0.1:0", 5);
  ASSERT_TRUE(server.ok()) << server.status();
  (*server)->Publish(Alive());
  std::vector<int> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(Connect(**server));
  EXPECT_THAT(Get(**server, "/metrics"), HasSubstr("tacc_worker_threads"));
  for (const int fd : silent) close(fd);
}

TEST(MetricsServerTest, ATakenPortIsAnError) {
  auto first = MetricsServer::Start("127.0.0.1:0", 5);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(MetricsServer::Start((*first)->address(), 5).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace tacc::worker
