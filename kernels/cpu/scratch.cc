#include "kernels/cpu/scratch.h"

#include <c10/core/CPUAllocator.h>

namespace tacc::kernels::cpu {

Scratch::Scratch(int64_t bytes) {
  if (bytes > 0) data_ = c10::GetCPUAllocator()->raw_allocate(static_cast<size_t>(bytes));
}

Scratch::~Scratch() {
  if (data_ != nullptr) c10::GetCPUAllocator()->raw_deallocate(data_);
}

}  // namespace tacc::kernels::cpu
