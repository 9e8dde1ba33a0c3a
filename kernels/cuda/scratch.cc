#include "kernels/cuda/scratch.h"

#include <c10/core/Allocator.h>

#include <cstring>

#include "kernels/cuda/aten.h"

namespace tacc::kernels::cuda {

Scratch::Scratch(int64_t bytes) {
  if (bytes <= 0) return;
  data_ = c10::GetAllocator(kDevice)->raw_allocate(static_cast<size_t>(bytes));
  // In tests nobody is to count on zeros: NaN.
  if constexpr (kDevice == c10::DeviceType::CPU) std::memset(data_, 0xff, static_cast<size_t>(bytes));
}

Scratch::~Scratch() {
  if (data_ != nullptr) c10::GetAllocator(kDevice)->raw_deallocate(data_);
}

}  // namespace tacc::kernels::cuda
