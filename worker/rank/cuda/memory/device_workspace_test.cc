#include "worker/rank/cuda/memory/device_workspace.h"

#include <set>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;
using Capture = DeviceWorkspace::Capture;

void* const kRegion = reinterpret_cast<void*>(uintptr_t{1} << 40);
constexpr int64_t kRegionBytes = 16 * DeviceHeap::kGrainBytes;

class DeviceWorkspaceTest : public ::testing::Test {
 protected:
  // A system of 1000 bytes.
  absl::StatusOr<void*> SystemAllocate(int64_t num_bytes) {
    if (num_bytes > 1000) return absl::ResourceExhaustedError("cudaErrorMemoryAllocation");
    next_ += 1 << 20;
    system_.insert(next_);
    return next_;
  }

  char* next_ = reinterpret_cast<char*>(uintptr_t{1} << 20);
  std::set<void*> system_;
  DeviceWorkspace workspace_{{[this](int64_t num_bytes) { return SystemAllocate(num_bytes); },
                              [this](void* data) { EXPECT_EQ(system_.erase(data), 1u); }}};
  const int streams_[3] = {};
  const DeviceWorkspace::Stream compute_ = &streams_[0], capture_ = &streams_[1], other_ = &streams_[2];
};

TEST_F(DeviceWorkspaceTest, AsksTheSystemUntilThereIsAWorkspace) {
  void* early = workspace_.Allocate(100, compute_, Capture::kOff).value();
  EXPECT_EQ(system_.count(early), 1u);
  workspace_.SetWorkspace(kRegion, kRegionBytes, {compute_, capture_});
  void* block = workspace_.Allocate(100, compute_, Capture::kOff).value();
  EXPECT_EQ(block, kRegion);
  void* captured = workspace_.Allocate(100, capture_, Capture::kOn).value();
  EXPECT_EQ(captured, static_cast<char*>(kRegion) + DeviceHeap::kGrainBytes);
  void* outside = workspace_.Allocate(100, other_, Capture::kOff).value();
  EXPECT_EQ(system_.count(outside), 1u);
  DeviceWorkspace::Stats stats = workspace_.stats();
  EXPECT_EQ(stats.system_blocks_before, 1);
  EXPECT_EQ(stats.system_blocks_after, 1);
  EXPECT_EQ(stats.system_bytes, 200);
  EXPECT_EQ(stats.num_refused, 0);
  EXPECT_EQ(stats.heap.used_bytes, 2 * DeviceHeap::kGrainBytes);
  for (void* data : {early, block, captured, outside}) EXPECT_TRUE(workspace_.Free(data));
  EXPECT_TRUE(system_.empty());
  stats = workspace_.stats();
  EXPECT_EQ(stats.system_bytes, 0);
  EXPECT_EQ(stats.heap.used_bytes, 0);
  EXPECT_FALSE(workspace_.Free(early));
  EXPECT_FALSE(workspace_.Free(block));
}

TEST_F(DeviceWorkspaceTest, SaysWhatDoesNotFit) {
  workspace_.SetWorkspace(kRegion, kRegionBytes, {compute_});
  EXPECT_TRUE(workspace_.Allocate(3 * DeviceHeap::kGrainBytes, compute_, Capture::kOff).ok());
  const absl::Status status = workspace_.Allocate(kRegionBytes, compute_, Capture::kOn).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("8192 bytes wanted, 6656 free, the largest gap 6656"));
  EXPECT_EQ(workspace_.stats().num_refused, 1);
  EXPECT_EQ(workspace_.stats().largest_refused_bytes, kRegionBytes);
  EXPECT_EQ(workspace_.stats().system_blocks_after, 0);
}

TEST_F(DeviceWorkspaceTest, NeverAsksTheSystemUnderCapture) {
  absl::Status status = workspace_.Allocate(100, compute_, Capture::kOn).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("before there is a workspace"));
  workspace_.SetWorkspace(kRegion, kRegionBytes, {compute_});
  status = workspace_.Allocate(100, other_, Capture::kOn).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a stream that the workspace does not serve"));
  EXPECT_TRUE(system_.empty());
}

TEST_F(DeviceWorkspaceTest, PassesOnWhatTheSystemSays) {
  EXPECT_THAT(std::string(workspace_.Allocate(2000, compute_, Capture::kOff).status().message()),
              HasSubstr("cudaErrorMemoryAllocation"));
  EXPECT_EQ(workspace_.Allocate(0, compute_, Capture::kOff).value(), nullptr);
  EXPECT_TRUE(workspace_.Free(nullptr));
}

}  // namespace
}  // namespace tacc::worker
