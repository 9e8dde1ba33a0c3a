#include "kernels/cpu/cross_entropy.h"

#include <cstring>

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

double Element(const TensorView& x, int64_t i) {
  double value = 0;
  simd::BestLoops().accumulate_f64(&value, In(x), i, 1);
  return value;
}

// Whether the row-th token exists: its index lies inside bounds in every dim.
bool Exists(const Dims& dims, const Dims& bounds, int64_t row) {
  for (int d = dims.rank() - 1; d >= 0; --d) {
    if (row % dims[d] >= bounds[d]) return false;
    row /= dims[d];
  }
  return true;
}

}  // namespace

void CrossEntropy(const TensorView& logits, const TensorView& targets, int64_t offset, const Dims& bounds,
                  const TensorView& loss, const TensorView& count, const TensorView& lse) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(bounds.rank() == targets.dims.rank());
  const simd::CrossEntropyRows rows{.vocabulary = vocabulary,
                                    .offset = offset,
                                    .logits = In(logits),
                                    .targets = targets.as<int32_t>(),
                                    .out = Out(lse)};
  ParallelFor(tokens, 1 + 16384 / (vocabulary + 1),
              [&](int64_t begin, int64_t end) { simd::BestLoops().cross_entropy(rows, begin, end); });
  double total = 0, counted = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    if (rows.targets[i] < 0 || !Exists(targets.dims, bounds, i)) continue;
    const int64_t target = rows.targets[i] - offset;
    total += Element(lse, i);
    if (target >= 0 && target < vocabulary) total -= Element(logits, i * vocabulary + target);
    counted += 1;
  }
  WriteScalar(total, loss);
  WriteScalar(counted, count);
}

void CrossEntropyGrad(const TensorView& logits, const TensorView& targets, const TensorView& lse,
                      const TensorView& dloss, int64_t offset, const Dims& bounds, const TensorView& dlogits) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(dlogits.size() == logits.size() && bounds.rank() == targets.dims.rank());
  const simd::CrossEntropyRows rows{.vocabulary = vocabulary,
                                    .offset = offset,
                                    .logits = In(logits),
                                    .targets = targets.as<int32_t>(),
                                    .lse = In(lse),
                                    .dloss = ReadScalar(dloss),
                                    .out = Out(dlogits)};
  const int64_t row_bytes = vocabulary * SizeOf(dlogits.dtype);
  ParallelFor(tokens, 1 + 16384 / (vocabulary + 1), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      if (Exists(targets.dims, bounds, row)) {
        simd::BestLoops().cross_entropy_grad(rows, row, row + 1);
      } else {
        std::memset(dlogits.as<char>() + row * row_bytes, 0, row_bytes);
      }
    }
  });
}

}  // namespace tacc::kernels::cpu
