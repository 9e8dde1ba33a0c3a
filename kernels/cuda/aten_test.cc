// How kernels/cuda hands memory to LibTorch on a GPU, without one: LibTorch's CUDA part is not linked here, so whatever
// asks the driver fails.
#include "kernels/cuda/aten.h"

#include <c10/core/impl/FakeGuardImpl.h>

#include "gtest/gtest.h"

namespace tacc::kernels::cuda {
namespace {

using FakeGpus = c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>;
C10_REGISTER_GUARD_IMPL(CUDA, FakeGpus)

TEST(TensorIn, IsOnTheCurrentDeviceAndTheDriverIsNotAsked) {
  static_assert(kDevice == c10::DeviceType::CUDA);
  float data[12] = {};
  EXPECT_THROW(at::from_blob(data, {3, 4}, AtenOptions(DType::kF32)), c10::Error);  // That asks.
  for (const int gpu : {3, 0}) {
    FakeGpus::setDeviceIndex(static_cast<c10::DeviceIndex>(gpu));
    const c10::Device want(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(gpu));
    const at::Tensor dense = TensorIn(data, {3, 4}, DType::kF32);
    EXPECT_EQ(dense.device(), want);
    EXPECT_EQ(dense.data_ptr(), data);
    EXPECT_TRUE(dense.is_contiguous() && dense.scalar_type() == at::kFloat);
    const at::Tensor transposed = TensorIn(data, {4, 3}, {1, 4}, DType::kBF16);
    EXPECT_EQ(transposed.device(), want);
    EXPECT_EQ(transposed.strides(), c10::IntArrayRef({1, 4}));
    EXPECT_EQ(transposed.scalar_type(), at::kBFloat16);
  }
}

}  // namespace
}  // namespace tacc::kernels::cuda
