#include "worker/rank/cuda/memory/device_heap.h"

#include <map>
#include <random>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

// An address that must never be touched.
void* const kBegin = reinterpret_cast<void*>(uintptr_t{1} << 40);
constexpr int64_t kGrain = DeviceHeap::kGrainBytes;

int64_t OffsetOf(void* data) { return static_cast<char*>(data) - static_cast<char*>(kBegin); }

TEST(DeviceHeap, TakesTheSmallestGapThatFitsAndJoinsNeighbours) {
  DeviceHeap heap(kBegin, 20 * kGrain + 100);  // The last 100 bytes are no grain.
  EXPECT_EQ(heap.stats().total_bytes, 20 * kGrain);
  std::vector<void*> blocks;
  for (int64_t grains : {4, 1, 2, 1, 8, 4}) blocks.push_back(heap.Allocate(grains * kGrain));
  EXPECT_EQ(OffsetOf(blocks[5]), 16 * kGrain);
  EXPECT_EQ(heap.Allocate(1), nullptr);
  EXPECT_TRUE(heap.Free(blocks[0]));
  EXPECT_TRUE(heap.Free(blocks[2]));
  EXPECT_EQ(heap.Allocate(kGrain + 1), blocks[2]);  // Two grains fit better than four.
  EXPECT_TRUE(heap.Free(blocks[2]));
  EXPECT_EQ(heap.stats().largest_free_bytes, 4 * kGrain);
  EXPECT_TRUE(heap.Free(blocks[1]));  // Between the two gaps: one of seven.
  EXPECT_EQ(heap.stats().largest_free_bytes, 7 * kGrain);
  EXPECT_EQ(heap.Allocate(7 * kGrain), blocks[0]);
  EXPECT_TRUE(heap.Free(blocks[0]));
  for (size_t i : {5, 4, 3}) EXPECT_TRUE(heap.Free(blocks[i]));
  const DeviceHeap::Stats stats = heap.stats();
  EXPECT_EQ(stats.largest_free_bytes, 20 * kGrain);
  EXPECT_EQ(stats.used_bytes, 0);
  EXPECT_EQ(stats.num_blocks, 0);
  EXPECT_EQ(stats.peak_used_bytes, 20 * kGrain);
  EXPECT_EQ(stats.highest_bytes, 20 * kGrain);
}

TEST(DeviceHeap, ThePeakBeginsAgainFromWhatIsUsed) {
  DeviceHeap heap(kBegin, 20 * kGrain);
  void* const stays = heap.Allocate(2 * kGrain);
  EXPECT_TRUE(heap.Free(heap.Allocate(9 * kGrain)));
  EXPECT_EQ(heap.stats().peak_used_bytes, 11 * kGrain);
  heap.ResetPeak();
  EXPECT_EQ(heap.stats().peak_used_bytes, 2 * kGrain);
  EXPECT_TRUE(heap.Free(heap.Allocate(3 * kGrain)));
  EXPECT_EQ(heap.stats().peak_used_bytes, 5 * kGrain);
  EXPECT_EQ(heap.stats().highest_bytes, 11 * kGrain);
  EXPECT_TRUE(heap.Free(stays));
}

TEST(DeviceHeap, RefusesWhatIsNoLiveBlock) {
  DeviceHeap heap(kBegin, 4 * kGrain);
  EXPECT_EQ(heap.Allocate(0), nullptr);
  EXPECT_EQ(heap.Allocate(-1), nullptr);
  EXPECT_EQ(heap.Allocate(5 * kGrain), nullptr);
  EXPECT_EQ(heap.Allocate(INT64_MAX), nullptr);
  char* block = static_cast<char*>(heap.Allocate(2 * kGrain));
  EXPECT_FALSE(heap.Free(block + kGrain));
  EXPECT_FALSE(heap.Free(block - 1));
  EXPECT_FALSE(heap.Free(nullptr));
  EXPECT_TRUE(heap.Free(block));
  EXPECT_FALSE(heap.Free(block));  // Twice.
  EXPECT_TRUE(heap.Contains(block + 4 * kGrain - 1));
  EXPECT_FALSE(heap.Contains(block + 4 * kGrain));
  DeviceHeap empty(kBegin, kGrain - 1);
  EXPECT_EQ(empty.Allocate(1), nullptr);
}

TEST(DeviceHeap, RandomBlocksNeverOverlapAndAllComeBack) {
  constexpr int64_t kGrains = 512;
  DeviceHeap heap(kBegin, kGrains * kGrain);
  std::mt19937 random(1);
  std::map<int64_t, int64_t> live;  // the end of each block, by its begin
  int64_t used = 0, refused = 0;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 == 0 || live.empty()) {
      const int64_t bytes = 1 + random() % (random() % 8 == 0 ? 100 * kGrain : 4 * kGrain);
      const int64_t rounded = (bytes + kGrain - 1) / kGrain * kGrain;
      const int64_t largest = heap.stats().largest_free_bytes;
      void* data = heap.Allocate(bytes);
      ASSERT_EQ(data != nullptr, rounded <= largest);
      if (data == nullptr) {
        ++refused;
        continue;
      }
      const int64_t begin = OffsetOf(data), end = begin + rounded;
      ASSERT_EQ(begin % kGrain, 0);
      ASSERT_LE(end, kGrains * kGrain);
      const auto next = live.lower_bound(begin);
      ASSERT_TRUE(next == live.end() || next->first >= end);
      ASSERT_TRUE(next == live.begin() || std::prev(next)->second <= begin);
      live.emplace(begin, end);
      used += rounded;
    } else {
      const auto block = std::next(live.begin(), random() % live.size());
      ASSERT_TRUE(heap.Free(static_cast<char*>(kBegin) + block->first));
      used -= block->second - block->first;
      live.erase(block);
    }
    ASSERT_EQ(heap.stats().used_bytes, used);
    ASSERT_EQ(heap.stats().num_blocks, static_cast<int64_t>(live.size()));
  }
  EXPECT_GT(refused, 100);
  for (const auto& [begin, end] : live) EXPECT_TRUE(heap.Free(static_cast<char*>(kBegin) + begin));
  EXPECT_EQ(heap.stats().largest_free_bytes, kGrains * kGrain);
}

TEST(DeviceHeap, ThreadsAllocateAtOnce) {
  DeviceHeap heap(kBegin, 1000 * kGrain);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&heap, i] {
      for (int repeat = 0; repeat < 2000; ++repeat) {
        void* a = heap.Allocate((1 + (repeat + i) % 7) * kGrain);
        void* b = heap.Allocate(kGrain);
        EXPECT_TRUE(heap.Free(a));
        EXPECT_TRUE(heap.Free(b));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(heap.stats().largest_free_bytes, 1000 * kGrain);
}

}  // namespace
}  // namespace tacc::worker
