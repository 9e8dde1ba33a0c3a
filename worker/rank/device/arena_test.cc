#include "worker/rank/device/arena.h"

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "worker/rank/device/workspace_heap.h"

namespace tacc::worker {
namespace {

TEST(Arena, PoisonIsNanInEveryTypeAndShowsWhatIsTouched) {
  auto arena = Arena::Create(10'000, 5'000);
  ASSERT_TRUE(arena.ok()) << arena.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*arena)->workspace().data()) % 64, 0u);
  EXPECT_GE((*arena)->workspace().size(), 5'000u);
  EXPECT_EQ((*arena)->data()[9'999], 0);
  (*arena)->Poison();
  float f;
  double d;
  std::memcpy(&f, (*arena)->data() + 4, sizeof(f));
  std::memcpy(&d, (*arena)->data() + 8, sizeof(d));
  EXPECT_TRUE(std::isnan(f));
  EXPECT_TRUE(std::isnan(d));
  EXPECT_EQ((*arena)->HighestTouched(), 0);
  std::memset((*arena)->data() + 1'000, 0, 24);
  EXPECT_EQ((*arena)->HighestTouched(), 1'024);
}

TEST(Arena, SizesThatMakeNoSenseAreRefused) {
  EXPECT_EQ(Arena::Create(-1, 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Arena::Create(int64_t{1} << 60, 0).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(WorkspaceHeap, BlocksAreReusedAndJoined) {
  alignas(64) static char region[64 * 100];
  WorkspaceHeap heap(absl::Span<char>(region, sizeof(region)));
  void* a = heap.Allocate(1'000);
  void* b = heap.Allocate(2'000);
  void* c = heap.Allocate(1'000);
  ASSERT_NE(c, nullptr);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b) % 64, 0u);
  EXPECT_EQ(heap.Allocate(3'000), nullptr);
  heap.Free(a);
  heap.Free(b);
  EXPECT_EQ(heap.Allocate(3'000), a);  // The two make one gap.
  heap.Free(c);
  heap.Free(a);
  EXPECT_EQ(heap.stats().used_bytes, 0);
  void* whole = heap.Allocate(sizeof(region) - 64);
  EXPECT_EQ(whole, a);
  EXPECT_EQ(heap.stats().highest_bytes, static_cast<int64_t>(sizeof(region)));
}

TEST(WorkspaceHeap, AnEmptyRegionServesNothing) {
  WorkspaceHeap heap{absl::Span<char>()};
  EXPECT_EQ(heap.Allocate(1), nullptr);
}

// Random sizes in a random order: no block overlaps another, and all memory comes back.
TEST(WorkspaceHeap, RandomUse) {
  alignas(64) static char region[1 << 16];
  WorkspaceHeap heap(absl::Span<char>(region, sizeof(region)));
  std::mt19937 random(7);
  struct Live {
    char* data;
    size_t bytes;
    char mark;
  };
  std::vector<Live> live;
  for (int i = 0; i < 20'000; ++i) {
    if (live.size() < 40 && random() % 2 == 0) {
      const size_t bytes = random() % 3'000;
      char* data = static_cast<char*>(heap.Allocate(bytes));
      if (data == nullptr) continue;
      live.push_back({data, bytes, static_cast<char>(i)});
      std::memset(data, live.back().mark, bytes);
    } else if (!live.empty()) {
      const size_t k = random() % live.size();
      for (size_t j = 0; j < live[k].bytes; ++j) ASSERT_EQ(live[k].data[j], live[k].mark);
      heap.Free(live[k].data);
      live.erase(live.begin() + static_cast<ptrdiff_t>(k));
    }
  }
  for (const Live& block : live) heap.Free(block.data);
  EXPECT_EQ(heap.stats().used_bytes, 0);
  EXPECT_NE(heap.Allocate(sizeof(region) - 64), nullptr);
}

}  // namespace
}  // namespace tacc::worker
