// Needs a GPU.
#include "worker/rank/cuda/memory/cuda_allocator.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

using ::testing::HasSubstr;

// LibTorch keeps the allocator: one installation a process, one test.
TEST(CudaAllocator, ServesLibtorchFromTheWorkspace) {
  if (c10::cuda::device_count() == 0) GTEST_SKIP() << "no GPU";
  DeviceWorkspace& workspace = InstallCudaAllocator(0);
  const at::TensorOptions options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const at::Tensor early = at::ones({100}, options);
  EXPECT_GE(workspace.stats().system_blocks_before, 1);
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  ReserveCublasWorkspace();
  EXPECT_GE(workspace.stats().system_bytes, kCublasWorkspaceBytes);
  EXPECT_LE(workspace.stats().system_bytes, kCublasWorkspaceBytes + (1 << 20));

  constexpr int64_t kBytes = int64_t{256} << 20;
  void* region = nullptr;
  ASSERT_EQ(cudaMalloc(&region, kBytes), cudaSuccess);
  workspace.SetWorkspace(region, kBytes, {stream.stream()});
  {
    const at::Tensor x = at::ones({512, 512}, options);
    EXPECT_GE(static_cast<char*>(x.data_ptr()), static_cast<char*>(region));
    EXPECT_LT(static_cast<char*>(x.data_ptr()), static_cast<char*>(region) + kBytes);
    EXPECT_EQ(at::mm(x, x)[511][511].item<float>(), 512);
    for (int i = 0; i < 10; ++i) EXPECT_EQ(at::mm(x, x)[511][511].item<float>(), 512);
  }
  // What is free of the GPU's memory is everybody's: what LibTorch took of the system is counted.
  const DeviceWorkspace::Stats stats = workspace.stats();
  EXPECT_EQ(stats.system_blocks_after, 0);
  EXPECT_EQ(stats.heap.used_bytes, 0);
  try {
    at::empty({kBytes}, options);
    ADD_FAILURE() << "served what does not fit";
  } catch (const c10::OutOfMemoryError& error) {
    EXPECT_THAT(std::string(error.what()), HasSubstr("the planned GPU workspace of"));
  }
  EXPECT_EQ(workspace.stats().num_refused, 1);
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
}

}  // namespace
}  // namespace tacc::worker
