#include "kernels/contract/cross_entropy.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/kernels.h"
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

void CrossEntropy(const TensorView& logits, const TensorView& targets, int64_t offset, const Dims& bounds,
                  const TensorView& loss, const TensorView& count, const TensorView& lse) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(bounds.rank() == targets.dims.rank());
  const simd::CrossEntropyRows rows{.vocabulary = vocabulary,
                                    .pitch = vocabulary,
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

void LogSumExp(const TensorView& x, int64_t valid, const TensorView& y) {
  const int64_t num_rows = x.num_rows(), pitch = x.row_length(), parts = y.row_length();
  TACC_KERNEL_CHECK(y.num_rows() == num_rows && parts > 0 && valid <= pitch);
  const int64_t part = (pitch + parts - 1) / parts;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t first = p * part;
    simd::CrossEntropyRows rows{.vocabulary = std::max<int64_t>(0, std::min(part, valid - first)),
                                .pitch = pitch,
                                .first = first,
                                .logits = In(x),
                                .out = Out(y),
                                .out_pitch = parts,
                                .out_first = p};
    ParallelFor(num_rows, 1 + 16384 / (part + 1),
                [&](int64_t begin, int64_t end) { simd::BestLoops().cross_entropy(rows, begin, end); });
  }
}

void CrossEntropySum(const TensorView& logits, const TensorView& targets, const TensorView& lse, int64_t offset,
                     int64_t valid, const Dims& bounds, const TensorView& loss, const TensorView& count) {
  const int64_t tokens = logits.num_rows(), pitch = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(bounds.rank() == targets.dims.rank() && valid <= pitch);
  double total = 0, counted = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t target = targets.as<int32_t>()[i] - offset;
    if (target < 0 || target >= valid || targets.as<int32_t>()[i] < 0 || !Exists(targets.dims, bounds, i)) continue;
    total += Element(lse, i) - Element(logits, i * pitch + target);
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
                                    .pitch = vocabulary,
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

}  // namespace

const CrossEntropyKernels kCrossEntropy = {
    .CrossEntropy = CrossEntropy,
    .LogSumExp = LogSumExp,
    .CrossEntropySum = CrossEntropySum,
    .CrossEntropyGrad = CrossEntropyGrad,
};

}  // namespace tacc::kernels::cpu
