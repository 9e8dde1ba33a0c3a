// LibTorch's tensors of kernels/cuda: on the GPU, or in the library for tests on the host.
#ifndef TACC_KERNELS_CUDA_ATEN_H_
#define TACC_KERNELS_CUDA_ATEN_H_

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "kernels/cpu/aten.h"

namespace tacc::kernels::cuda {

#ifdef TACC_CUDA_ON_HOST
inline constexpr c10::DeviceType kDevice = c10::DeviceType::CPU;
#else
inline constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;
#endif

// Of the current device.
inline c10::TensorOptions AtenOptions(DType dtype) { return cpu::AtenOptions(dtype).device(kDevice); }

// As LibTorch knows it: CUDA is asked for no more than this thread's device, also while it records.
inline c10::Device CurrentDevice() { return c10::impl::VirtualGuardImpl(kDevice).getDevice(); }

// A tensor in memory of the current device, which the caller keeps; dense, or with strides in elements. Always by
// these: from_blob that is told no device asks the driver whose memory it is, for each operand of each call.
inline at::Tensor TensorIn(void* data, c10::IntArrayRef dims, DType dtype) {
  return at::for_blob(data, dims).options(AtenOptions(dtype)).target_device(CurrentDevice()).make_tensor();
}
inline at::Tensor TensorIn(void* data, c10::IntArrayRef dims, c10::IntArrayRef strides, DType dtype) {
  return at::for_blob(data, dims)
      .strides(strides)
      .options(AtenOptions(dtype))
      .target_device(CurrentDevice())
      .make_tensor();
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ATEN_H_
