#include "kernels/cpu/dropout.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

void Dropout(const TensorView& x, const TensorView& step, const TensorView& sample, const SamplePart& part,
             const DropoutParameters& parameters, const TensorView& y) {
  TACC_KERNEL_CHECK(parameters.rate >= 0 && parameters.rate < 1 && x.size() == y.size());
  TACC_KERNEL_CHECK(x.dims.rank() >= 1 && sample.size() == x.dims[0] && sample.dtype == DType::kI64);
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64);
  const Dims own(x.dims.begin() + 1, x.dims.end());
  const Dims& logical = part.logical.empty() ? own : part.logical;
  TACC_KERNEL_CHECK(logical.rank() == own.rank() && (part.offset.empty() || part.offset.rank() == own.rank()));
  const int64_t num_positions = static_cast<int64_t>(part.positions.size());
  TACC_KERNEL_CHECK(num_positions == 0 ||
                    (own.rank() >= 2 && part.offset.rank() == own.rank() && num_positions <= own[0]));
  if (x.size() == 0) return;
  // A run is dense in the logical sample too: trailing dims that are whole, until there is work enough,
  // and the one before them.
  const int rank = own.rank();
  int first = rank - 1;
  while (first > (part.positions.empty() ? 0 : 1) && own[first] == logical[first] && own.Product(first, rank) < 4096)
    --first;
  if (first < 0) first = 0;
  const int64_t run_length = own.Product(first, rank), runs = own.Product(0, rank == 0 ? 0 : first);
  const Strides strides = DenseStrides(logical);
  int64_t start = 0;
  for (int d = 0; d < part.offset.rank(); ++d) start += part.offset[d] * strides[d];

  simd::DropoutRun shared = DropoutOf(parameters, *step.as<int64_t>());
  shared.n = run_length;
  const int64_t x_bytes = SizeOf(x.dtype) * run_length, y_bytes = SizeOf(y.dtype) * run_length;
  ParallelFor(x.dims[0] * runs, 1 + 8192 / run_length, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      simd::DropoutRun run = shared;
      run.position = start;
      int64_t index = i % runs;
      for (int d = first - 1; d >= 0; --d) {
        int64_t at = index % own[d];
        if (d == 0 && !part.positions.empty()) at = at < num_positions ? part.positions[at] - part.offset[0] : 0;
        run.position += at * strides[d];
        index /= own[d];
      }
      run.sample = sample.as<int64_t>()[i / runs];
      run.x = {x.as<char>() + i * x_bytes, x.dtype};
      run.y = {y.as<char>() + i * y_bytes, y.dtype};
      simd::BestLoops().dropout(run);
    }
  });
}

}  // namespace

simd::DropoutRun DropoutOf(const DropoutParameters& parameters, int64_t step) {
  const uint64_t seed = static_cast<uint64_t>(parameters.seed);
  return {.step = step,
          .key0 = static_cast<uint32_t>(seed) ^ static_cast<uint32_t>(seed >> 32) * 0x9E3779B9u,
          .key1 = static_cast<uint32_t>(parameters.key),
          .threshold = static_cast<uint32_t>(parameters.rate * 4294967296.0),
          .scale = 1 / (1 - parameters.rate)};
}

const DropoutKernels kDropout = {
    .Dropout = Dropout,
};

}  // namespace tacc::kernels::cpu
