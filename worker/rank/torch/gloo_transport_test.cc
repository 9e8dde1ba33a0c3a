#include "worker/rank/torch/gloo_transport.h"

#include <sched.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

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

TEST(GlooTransport, RanksMeetAndTalk) {
  constexpr int kWorld = 3, kMeetings = 3;
  constexpr absl::Duration kTimeout = absl::Seconds(30);
  const int policy = sched_getscheduler(0);
  const bool may_preempt_nobody = MayPreemptNobody();
  const auto server = RendezvousServer::Start("127.0.0.1", kWorld, kTimeout);
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<int> num_here[kMeetings] = {};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorld; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.rank = rank;
      options.world = kWorld;
      options.advertise = rank == 1 ? "127.0.0.2" : "127.0.0.1";
      options.store = {"127.0.0.1", (*server)->port()};
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
}

}  // namespace
}  // namespace tacc::worker
