// The border to LibTorch: dtypes as its tensor options.
#ifndef TACC_KERNELS_CPU_ATEN_H_
#define TACC_KERNELS_CPU_ATEN_H_

#include <c10/core/TensorOptions.h>

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

inline c10::TensorOptions AtenOptions(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return c10::kBool;
    case DType::kI32:
      return c10::kInt;
    case DType::kI64:
      return c10::kLong;
    case DType::kBF16:
      return c10::kBFloat16;
    case DType::kF16:
      return c10::kHalf;
    case DType::kF32:
      return c10::kFloat;
    case DType::kF64:
      return c10::kDouble;
  }
  return c10::kFloat;
}

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_ATEN_H_
