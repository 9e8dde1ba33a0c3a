// Where LibTorch's tensors of kernels/cuda lie: on the GPU, or in the library for tests on the host.
#ifndef TACC_KERNELS_CUDA_ATEN_H_
#define TACC_KERNELS_CUDA_ATEN_H_

#include <c10/core/DeviceType.h>

#include "kernels/cpu/aten.h"

namespace tacc::kernels::cuda {

#ifdef TACC_CUDA_ON_HOST
inline constexpr c10::DeviceType kDevice = c10::DeviceType::CPU;
#else
inline constexpr c10::DeviceType kDevice = c10::DeviceType::CUDA;
#endif

// Of the current device.
inline c10::TensorOptions AtenOptions(DType dtype) { return cpu::AtenOptions(dtype).device(kDevice); }

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ATEN_H_
