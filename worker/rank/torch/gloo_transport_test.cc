#include "worker/rank/torch/gloo_transport.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "machine/tcp_peers.h"
#include "machine/testing/test_directory.h"

namespace tacc::worker {
namespace {

// Of this process.
int NumBatchThreads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    count += sched_getscheduler(std::stoi(task.path().filename())) == SCHED_BATCH;
  return count;
}

// Whether threads here are ordinary ones, and may become such as preempt nobody.
bool MayPreemptNobody() {
  bool may = sched_getscheduler(0) == SCHED_OTHER;
  const sched_param none = {};
  std::thread([&] { may = may && sched_setscheduler(0, SCHED_BATCH, &none) == 0; }).join();
  return may;
}

// Ranks that find each other by a file where there is a folder for it, else by a port.
class GlooTransportTest : public testing::TestWithParam<bool> {
 protected:
  std::string LocalFolder() const { return GetParam() ? directory_.path() : ""; }
  TestDirectory directory_;
};
INSTANTIATE_TEST_SUITE_P(ByPortAndByFile, GlooTransportTest, testing::Bool());

TEST_P(GlooTransportTest, RanksMeetAndTalk) {
  constexpr int kWorld = 3, kMeetings = 3;
  constexpr absl::Duration kTimeout = absl::Seconds(30);
  const int policy = sched_getscheduler(0);
  const bool may_preempt_nobody = MayPreemptNobody();
  auto server = RendezvousServer::Start({"127.0.0.1", LocalFolder(), kWorld, kTimeout});
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<int> num_here[kMeetings] = {};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.rank = rank;
      options.world = kWorld;
      options.advertise = rank == 1 ? "127.0.0.2" : "127.0.0.1";
      options.store = (*server)->endpoint();
      options.timeout = kTimeout;
      const auto transport = ConnectGloo(options);
      ASSERT_TRUE(transport.ok()) << transport.status();
      EXPECT_EQ(sched_getscheduler(0), policy);
      // Who advertises the same address is on the same machine.
      EXPECT_EQ((*transport)->machine_of(2), (*transport)->machine_of(0));
      EXPECT_NE((*transport)->machine_of(1), (*transport)->machine_of(0));
      for (int i = 0; i < kMeetings; ++i) {
        absl::SleepFor(absl::Milliseconds(30 * ((rank + i) % kWorld)));
        ++num_here[i];
        ASSERT_EQ((*transport)->WaitForAll(), absl::OkStatus());
        EXPECT_EQ(num_here[i], kWorld) << "meeting " << i;
      }
      if (may_preempt_nobody) EXPECT_EQ(NumBatchThreads(), kWorld);  // Gloo's, one a rank.
      // To the next rank, from the one before.
      const int next = (rank + 1) % kWorld, before = (rank + kWorld - 1) % kWorld;
      int out = 10 * rank, in = -1;
      const auto receive = (*transport)->Receive(before, 7, &in, sizeof(in));
      const auto send = (*transport)->Send(next, 7, &out, sizeof(out));
      ASSERT_TRUE(receive.ok() && send.ok());
      ASSERT_EQ((*receive)->Wait(), absl::OkStatus());
      ASSERT_EQ((*send)->Wait(), absl::OkStatus());
      EXPECT_EQ(in, 10 * before);
      // Nobody goes while another still talks.
      ASSERT_EQ((*transport)->WaitForAll(), absl::OkStatus());
    });
  }
  for (std::thread& thread : threads) thread.join();
  server->reset();
  EXPECT_THAT(TestDirectory::Names(directory_.path()), testing::IsEmpty());
}

// As a rank of another attempt, or a guess.
TEST_P(GlooTransportTest, OneWithAnotherSecretJoinsNobody) {
  constexpr int kWorld = 2;
  const auto server = RendezvousServer::Start({"127.0.0.1", LocalFolder(), kWorld, absl::Seconds(30)});
  ASSERT_TRUE(server.ok()) << server.status();
  GlooOptions options;
  options.world = kWorld;
  options.advertise = "127.0.0.1";
  options.store = (*server)->endpoint();
  options.timeout = absl::Seconds(30);
  EXPECT_EQ(options.store.secret.size(), 32u);
  std::atomic<bool> has_joined{false};
  GlooOptions guess = options;
  guess.rank = 1;
  guess.store.secret = std::string(32, '0');
  // It waits for rank 0 without end, as a rank does: its process ends with the test's.
  const pid_t stranger = fork();
  if (stranger == 0) _exit(ConnectGloo(guess).ok() ? 1 : 2);
  absl::SleepFor(absl::Milliseconds(500));
  std::thread first([&] {
    ASSERT_EQ(ConnectGloo(options).status(), absl::OkStatus());
    has_joined = true;
  });
  absl::SleepFor(absl::Milliseconds(500));
  EXPECT_FALSE(has_joined);
  EXPECT_EQ(waitpid(stranger, nullptr, WNOHANG), 0) << "it still waits";
  GlooOptions second = options;  // The first goes on reading its own.
  second.rank = 1;
  EXPECT_EQ(ConnectGloo(second).status(), absl::OkStatus());
  first.join();
  EXPECT_TRUE(has_joined);
  EXPECT_EQ(waitpid(stranger, nullptr, WNOHANG), 0) << "it still waits";
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
}

// A port of this process at which something listens; -1: nothing does.
int ListeningPort() {
  constexpr size_t kLocal = 1, kState = 3, kInode = 9;
  std::set<std::string> own;
  for (const auto& fd : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    own.insert(std::filesystem::read_symlink(fd.path(), ignored).string());
  }
  std::ifstream table("/proc/self/net/tcp");
  for (std::string line; std::getline(table, line);) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() > kInode && words[kState] == "0A" && own.count("socket:[" + words[kInode] + "]") > 0)
      return std::stoi(words[kLocal].substr(words[kLocal].find(':') + 1), nullptr, 16);
  }
  return -1;
}

// As another user: connects to the port that comes on `ports`, and stays.
pid_t StartStranger(int ports) {
  const pid_t stranger = fork();
  if (stranger != 0) return stranger;
  int port = 0;
  if (setresuid(4242, 4242, 4242) != 0 || read(ports, &port, sizeof(port)) != sizeof(port)) _exit(1);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  if (connect(socket(AF_INET, SOCK_STREAM, 0), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) pause();
  _exit(2);
}

TEST(GlooTransport, AnotherUserWhoComesWhileTheRanksConnectGetsNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to be another user";
  int ports[2];
  ASSERT_EQ(pipe(ports), 0);
  const pid_t stranger = StartStranger(ports[0]);
  const TestDirectory directory;
  const auto server = RendezvousServer::Start({"127.0.0.1", directory.path(), 2, absl::Seconds(30)});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(ListeningPort(), -1) << "a file needs no port";
  GlooOptions options;
  options.world = 2;
  options.advertise = "127.0.0.1";
  options.store = (*server)->endpoint();
  options.timeout = absl::Seconds(30);
  absl::Status first_status;
  std::thread first([options, &first_status] { first_status = ConnectGloo(options).status(); });
  // Rank 0 listens for its peers once rank 1 has said that it is there.
  c10d::PrefixStore("attempt1-" + options.store.secret, c10::make_intrusive<c10d::FileStore>(options.store.file, -1))
      .set("connect/1", std::vector<uint8_t>{1});
  int port = -1;
  for (int i = 0; i < 3000 && port < 0; ++i, absl::SleepFor(absl::Milliseconds(10))) port = ListeningPort();
  ASSERT_EQ(write(ports[1], &port, sizeof(port)), static_cast<ssize_t>(sizeof(port)));
  const auto has_come = [] { return TcpPeerUsers().value_or(std::set<uid_t>()).count(4242) > 0; };
  for (int i = 0; i < 3000 && !has_come(); ++i) absl::SleepFor(absl::Milliseconds(10));
  ASSERT_TRUE(has_come());
  options.rank = 1;
  const absl::Status second_status = ConnectGloo(options).status();
  first.join();
  for (const absl::Status& status : {first_status, second_status}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr("user 4242 has connected to a port of rank "));
  }
  kill(stranger, SIGKILL);
  waitpid(stranger, nullptr, 0);
  close(ports[0]);
  close(ports[1]);
}

TEST(RendezvousFileTest, IsItsUsersAloneWhateverTheUmask) {
  const TestDirectory directory;
  const mode_t old_mask = umask(0);
  const auto server = RendezvousServer::Start({"127.0.0.1", directory.path(), 2, absl::Seconds(30)});
  umask(old_mask);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->endpoint().port, 0);
  struct stat info = {};
  ASSERT_EQ(stat((*server)->endpoint().file.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

}  // namespace
}  // namespace tacc::worker
