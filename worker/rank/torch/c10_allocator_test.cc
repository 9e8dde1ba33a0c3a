#include "worker/rank/torch/c10_allocator.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

// LibTorch keeps the pointer: installed once for the whole program.
WorkspaceAllocator& Installed() {
  static WorkspaceAllocator allocator;
  alignas(64) static char region[1 << 20];
  static const bool installed = [] {
    c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/1);
    allocator.SetWorkspace(absl::Span<char>(region, sizeof(region)));
    return true;
  }();
  EXPECT_TRUE(installed);
  return allocator;
}

TEST(WorkspaceAllocator, TensorsLieInTheWorkspaceAndGoBack) {
  WorkspaceAllocator& allocator = Installed();
  const WorkspaceAllocator::Stats before = allocator.stats();
  {
    const at::Tensor x = at::full({1000, 50}, 2.0), y = at::add(x, x);
    EXPECT_EQ(y[999][49].item<float>(), 4.0f);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(y.data_ptr()) % 64, 0u);
    EXPECT_GE(allocator.stats().heap.used_bytes, 2 * 200'000);
  }
  EXPECT_EQ(allocator.stats().heap.used_bytes, before.heap.used_bytes);
  EXPECT_EQ(allocator.stats().num_fallbacks, before.num_fallbacks);
}

TEST(WorkspaceAllocator, WhatDoesNotFitIsCountedAndStillServed) {
  WorkspaceAllocator& allocator = Installed();
  const WorkspaceAllocator::Stats before = allocator.stats();
  const at::Tensor x = at::full({3 << 20}, 1, c10::TensorOptions(c10::kByte));
  EXPECT_EQ(x[(3 << 20) - 1].item<uint8_t>(), 1);
  EXPECT_EQ(allocator.stats().num_fallbacks, before.num_fallbacks + 1);
  EXPECT_EQ(allocator.stats().largest_fallback_bytes, 3 << 20);
  const at::Tensor small = at::empty({16});  // Left to malloc, not counted.
  EXPECT_EQ(allocator.stats().num_fallbacks, before.num_fallbacks + 1);
}

TEST(WorkspaceAllocator, ThreadsAllocateAtOnce) {
  WorkspaceAllocator& allocator = Installed();
  const int64_t used = allocator.stats().heap.used_bytes;
  at::set_num_threads(2);
  std::vector<char> bad(2000, 0);
  at::parallel_for(0, 2000, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const at::Tensor x = at::empty({1024 + i % 500});
      float* data = x.data_ptr<float>();
      std::fill(data, data + x.numel(), static_cast<float>(i));
      bad[i] = !std::all_of(data, data + x.numel(), [i](float v) { return v == static_cast<float>(i); });
    }
  });
  EXPECT_EQ(std::count(bad.begin(), bad.end(), 1), 0);
  EXPECT_EQ(allocator.stats().heap.used_bytes, used);
}

}  // namespace
}  // namespace tacc::worker
