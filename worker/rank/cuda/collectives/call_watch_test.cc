#include "worker/rank/cuda/collectives/call_watch.h"

#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

using kernels::cuda::Progress;
using Kind = CollectiveCall::Kind;

// A word that "the device" writes while the thread reads it.
void Set(uint32_t& word, uint32_t value) { std::atomic_ref<uint32_t>(word).store(value); }

CollectiveCall MakeCall(Kind kind, std::vector<int> members, uint32_t node, Region& region) {
  CollectiveCall call;
  call.kind = kind;
  call.members = std::move(members);
  call.node = node;
  (kind == Kind::kReceive ? call.receive : call.send) = {region};
  return call;
}

// Waits until the block shows what is wanted.
testing::AssertionResult Shows(const StatusBlock& block, int64_t call, int64_t node, Activity activity) {
  RankStatus status;
  for (int i = 0; i < 2000; ++i) {
    status = block.Sample();
    if (status.call == call && status.node == node && status.activity == activity) return testing::AssertionSuccess();
    absl::SleepFor(absl::Milliseconds(5));
  }
  return testing::AssertionFailure() << "call " << status.call << ", node " << status.node << ", "
                                     << ActivityText(status.activity);
}

class CallWatchTest : public testing::Test {
 protected:
  char memory_[12];
  Region region_ = Flat(memory_, 12);
  const CollectiveCall gather_ = MakeCall(Kind::kExchange, {0, 1, 2}, 7, region_);
  const CollectiveCall receive_ = MakeCall(Kind::kReceive, {4}, 9, region_);
  Progress collectives_, messages_;
  uint32_t place_ = 0;
};

TEST_F(CallWatchTest, ShowsWhereTheDeviceIs) {
  auto block = StatusBlock::Create(absl::StrCat("/tacc-call-watch-", getpid()), 1);
  ASSERT_TRUE(block.ok()) << block.status();
  CallWatch watch(1, absl::Seconds(60));
  watch.AddQueue(&collectives_);
  watch.AddQueue(&messages_);
  watch.Show(block->get(), &place_);
  const uint32_t gather = watch.NumberOf(gather_, 2), receive = watch.NumberOf(receive_, 3);
  EXPECT_EQ(watch.NumberOf(gather_, 5), gather);    // It may be recorded for several calls.
  EXPECT_NE(watch.NumberOf(receive_, 4), receive);  // Another message.
  watch.Start(nullptr, [] { FAIL() << "nothing is to be aborted"; });

  Set(messages_.current, receive);
  Set(messages_.num_begun, 1);
  EXPECT_TRUE(Shows(**block, 3, 9, Activity::kInCollective));
  // A collective says more.
  Set(place_, 5);
  Set(collectives_.current, gather);
  Set(collectives_.num_begun, 1);
  EXPECT_TRUE(Shows(**block, 5, 7, Activity::kInCollective));
  Set(messages_.num_ended, 1);
  Set(collectives_.num_ended, 1);
  EXPECT_TRUE(Shows(**block, 5, 7, Activity::kInNode));
  // Whoever stands still writes nothing.
  const uint64_t heartbeat = (*block)->Sample().heartbeat;
  absl::SleepFor(absl::Milliseconds(250));
  EXPECT_EQ((*block)->Sample().heartbeat, heartbeat);
  watch.Stop();
  EXPECT_EQ(watch.Check(), absl::OkStatus());
}

TEST_F(CallWatchTest, NamesWhatWasNotAnsweredInTimeAndAbortsOnce) {
  CallWatch watch(1, absl::Seconds(1));
  watch.AddQueue(&collectives_);
  watch.AddQueue(&messages_);
  const uint32_t gather = watch.NumberOf(gather_, 0);
  std::atomic<int> num_aborts = 0;
  absl::Notification aborted;
  watch.Start(nullptr, [&] {
    ++num_aborts;
    aborted.Notify();
  });
  // Calls that end in time, counts that wrap.
  Set(collectives_.current, gather);
  for (uint32_t i = 0; i < 3; ++i) {
    Set(collectives_.num_begun, 0xffffffffu + i);
    absl::SleepFor(absl::Milliseconds(20));
    Set(collectives_.num_ended, 0xffffffffu + i);
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_EQ(watch.Check(), absl::OkStatus());
  const absl::Time begin = absl::Now();
  Set(collectives_.num_begun, 2);
  ASSERT_TRUE(aborted.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_GE(absl::Now() - begin, absl::Seconds(1));
  EXPECT_EQ(watch.Check(),
            absl::UnavailableError("rank 1 waits for an exchange with ranks 0, 2 (12 bytes) and had no answer for "
                                   "1s"));
  watch.Stop();
  EXPECT_EQ(num_aborts, 1);
}

TEST_F(CallWatchTest, TellsHowFarTheQueuesAre) {
  CallWatch watch(1, absl::Seconds(60));
  EXPECT_EQ(watch.Progress().num_moves, 0u);
  watch.AddQueue(&collectives_);
  watch.AddQueue(&messages_);
  Set(messages_.current, watch.NumberOf(receive_, 0));
  Set(messages_.num_begun, 1);
  EXPECT_EQ(watch.Progress().num_moves, 1u);
  EXPECT_FALSE(watch.Progress().is_under_way);  // A message.
  Set(collectives_.current, watch.NumberOf(gather_, 0));
  Set(collectives_.num_begun, 1);
  EXPECT_EQ(watch.Progress().num_moves, 2u);
  EXPECT_TRUE(watch.Progress().is_under_way);
  Set(collectives_.num_ended, 1);
  EXPECT_EQ(watch.Progress().num_moves, 3u);
  EXPECT_FALSE(watch.Progress().is_under_way);
}

// What the talk itself reports aborts it as well; nothing is published before there is a call.
TEST_F(CallWatchTest, TakesOtherErrors) {
  CallWatch watch(0, absl::Seconds(60));
  watch.AddQueue(&collectives_);
  absl::Notification aborted;
  watch.Start([] { return absl::UnavailableError("the network is down"); }, [&] { aborted.Notify(); });
  ASSERT_TRUE(aborted.WaitForNotificationWithTimeout(absl::Seconds(20)));
  EXPECT_EQ(watch.Check().message(), "the network is down");
}

}  // namespace
}  // namespace tacc::worker
