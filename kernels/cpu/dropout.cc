#include "kernels/cpu/dropout.h"

#include <array>
#include <cmath>
#include <numbers>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// Neighbours in one sample of an array [B, ...]: `n` elements from `first` on, which lie at `position` of the sample's
// logical elements.
struct Run {
  int64_t first = 0, n = 0, position = 0, sample = 0;
};

// Calls f(run) for all elements, from several threads.
template <typename F>
void ForEachRun(const Dims& dims, const TensorView& sample, const SamplePart& part, const F& f) {
  TACC_KERNEL_CHECK(dims.rank() >= 1 && sample.size() == dims[0] && sample.dtype == DType::kI64);
  const Dims own(dims.begin() + 1, dims.end());
  const Dims& logical = part.logical.empty() ? own : part.logical;
  TACC_KERNEL_CHECK(logical.rank() == own.rank() && (part.offset.empty() || part.offset.rank() == own.rank()));
  const int64_t num_positions = static_cast<int64_t>(part.positions.size());
  TACC_KERNEL_CHECK(num_positions == 0 ||
                    (own.rank() >= 2 && part.offset.rank() == own.rank() && num_positions <= own[0]));
  if (dims.Product(0, dims.rank()) == 0) return;
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

  ParallelFor(dims[0] * runs, 1 + 8192 / run_length, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Run run{i * run_length, run_length, start, sample.as<int64_t>()[i / runs]};
      int64_t index = i % runs;
      for (int d = first - 1; d >= 0; --d) {
        int64_t at = index % own[d];
        if (d == 0 && !part.positions.empty()) at = at < num_positions ? part.positions[at] - part.offset[0] : 0;
        run.position += at * strides[d];
        index /= own[d];
      }
      f(run);
    }
  });
}

int64_t StepOf(const TensorView& step) {
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64);
  return *step.as<int64_t>();
}

void Dropout(const TensorView& x, const TensorView& step, const TensorView& sample, const SamplePart& part,
             const DropoutParameters& parameters, const TensorView& y) {
  TACC_KERNEL_CHECK(parameters.rate >= 0 && parameters.rate < 1 && x.size() == y.size());
  const simd::DropoutRun shared = DropoutOf(parameters, StepOf(step));
  ForEachRun(x.dims, sample, part, [&](const Run& at) {
    simd::DropoutRun run = shared;
    run.n = at.n;
    run.position = at.position;
    run.sample = at.sample;
    run.x = {x.as<char>() + at.first * SizeOf(x.dtype), x.dtype};
    run.y = {y.as<char>() + at.first * SizeOf(y.dtype), y.dtype};
    simd::BestLoops().dropout(run);
  });
}

// The words of elements [4 * block, 4 * block + 4) of a sample. Source: Salmon et al., "Parallel Random Numbers: As
// Easy as 1, 2, 3", SC11, section 3.3.
std::array<uint32_t, 4> WordsOf(const simd::DropoutRun& shared, int64_t sample, int64_t block) {
  const auto step = static_cast<uint64_t>(shared.step), id = static_cast<uint64_t>(sample);
  const uint32_t high = static_cast<uint32_t>(step >> 32) ^ static_cast<uint32_t>(id >> 32) * 0x85EBCA6Bu;
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(block), static_cast<uint32_t>(id), static_cast<uint32_t>(step),
                               high ^ static_cast<uint32_t>(block >> 32) * 0xC2B2AE35u};
  uint32_t k0 = shared.key0, k1 = shared.key1;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(p1),
         static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p0)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

void Random(const TensorView& step, const TensorView& sample, const SamplePart& part,
            const RandomParameters& parameters, const TensorView& y) {
  TACC_KERNEL_CHECK(y.dtype == DType::kF32 || y.dtype == DType::kF64);
  const simd::DropoutRun shared = DropoutOf({.rate = 0, .key = parameters.key, .seed = parameters.seed}, StepOf(step));
  ForEachRun(y.dims, sample, part, [&](const Run& run) {
    for (int64_t block = run.position / 4; 4 * block < run.position + run.n; ++block) {
      const std::array<uint32_t, 4> words = WordsOf(shared, run.sample, block);
      double drawn[4];
      for (int i = 0; i < 4; ++i) drawn[i] = static_cast<double>(words[i] >> 8) * 0x1p-24;
      if (parameters.distribution == Distribution::kNormal) {
        for (double* pair : {drawn, drawn + 2}) {
          const double r = std::sqrt(-2 * std::log1p(-pair[0])), angle = 2 * std::numbers::pi * pair[1];
          pair[0] = r * std::cos(angle);
          pair[1] = r * std::sin(angle);
        }
      }
      for (int i = 0; i < 4; ++i) {
        const int64_t at = 4 * block + i - run.position;
        if (at < 0 || at >= run.n) continue;
        if (y.dtype == DType::kF32) {
          y.as<float>()[run.first + at] = static_cast<float>(drawn[i]);
        } else {
          y.as<double>()[run.first + at] = drawn[i];
        }
      }
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
    .Random = Random,
};

}  // namespace tacc::kernels::cpu
