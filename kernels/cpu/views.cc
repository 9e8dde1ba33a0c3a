#include "kernels/cpu/views.h"

#include <cstring>

#include "kernels/cpu/parallel.h"

namespace tacc::kernels::cpu {

double ReadScalar(const TensorView& x) {
  TACC_KERNEL_CHECK(x.size() == 1);
  double value = 0;
  simd::BestLoops().unary(UnaryOp::kCast, 0, 0, In(x), {&value, DType::kF64}, 0, 1);
  return value;
}

void WriteScalar(double value, const TensorView& y) {
  TACC_KERNEL_CHECK(y.size() == 1);
  simd::BestLoops().unary(UnaryOp::kCast, 0, 0, {&value, DType::kF64}, Out(y), 0, 1);
}

void CopyBytes(const void* from, void* to, int64_t bytes) {
  if (from == to) return;
  ParallelFor(bytes, 1 << 18, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  });
}

}  // namespace tacc::kernels::cpu
