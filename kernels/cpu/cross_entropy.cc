#include "kernels/cpu/cross_entropy.h"

#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

double Element(const TensorView& x, int64_t i) {
  double value = 0;
  simd::BestLoops().accumulate_f64(&value, In(x), i, 1);
  return value;
}

}  // namespace

void CrossEntropy(const TensorView& logits, const TensorView& targets, int64_t offset, const TensorView& loss,
                  const TensorView& count, const TensorView& lse) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  const simd::CrossEntropyRows rows{.vocabulary = vocabulary,
                                    .offset = offset,
                                    .logits = In(logits),
                                    .targets = targets.as<int32_t>(),
                                    .out = Out(lse)};
  ParallelFor(tokens, 1 + 16384 / (vocabulary + 1),
              [&](int64_t begin, int64_t end) { simd::BestLoops().cross_entropy(rows, begin, end); });
  double total = 0, counted = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    if (rows.targets[i] < 0) continue;
    const int64_t target = rows.targets[i] - offset;
    total += Element(lse, i);
    if (target >= 0 && target < vocabulary) total -= Element(logits, i * vocabulary + target);
    counted += 1;
  }
  WriteScalar(total, loss);
  WriteScalar(counted, count);
}

void CrossEntropyGrad(const TensorView& logits, const TensorView& targets, const TensorView& lse,
                      const TensorView& dloss, int64_t offset, const TensorView& dlogits) {
  const int64_t tokens = logits.num_rows(), vocabulary = logits.row_length();
  TACC_KERNEL_CHECK(targets.size() == tokens && lse.size() == tokens && targets.dtype == DType::kI32);
  TACC_KERNEL_CHECK(dlogits.size() == logits.size());
  const simd::CrossEntropyRows rows{.vocabulary = vocabulary,
                                    .offset = offset,
                                    .logits = In(logits),
                                    .targets = targets.as<int32_t>(),
                                    .lse = In(lse),
                                    .dloss = ReadScalar(dloss),
                                    .out = Out(dlogits)};
  ParallelFor(tokens, 1 + 16384 / (vocabulary + 1),
              [&](int64_t begin, int64_t end) { simd::BestLoops().cross_entropy_grad(rows, begin, end); });
}

}  // namespace tacc::kernels::cpu
