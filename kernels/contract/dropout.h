// Dropout and random numbers by a counter-based generator, so that those of an element depend on where it is in the
// global batch, never on who computes it.
#ifndef TACC_KERNELS_CONTRACT_DROPOUT_H_
#define TACC_KERNELS_CONTRACT_DROPOUT_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels {

struct DropoutParameters {
  double rate = 0;  // probability of dropping, in [0, 1)
  int64_t key = 0;  // one per place in the model
  int64_t seed = 0;
};

enum class Distribution {
  kUniform,  // in [0, 1)
  kNormal,   // of mean 0 and variance 1
};

struct RandomParameters {
  Distribution distribution = Distribution::kUniform;
  int64_t key = 0;  // one per place in the model
  int64_t seed = 0;
};

// The part of each sample that x holds: logical dims of a sample, and the index of x's first element in it. Without
// dims, x holds whole samples.
struct SamplePart {
  Dims logical;
  Dims offset;
  // Where the indices of x's dim 1 lie in the sample's first dim, when not from the offset on. May be shorter than the
  // dim: the rest is padding.
  std::vector<int64_t> positions;
};

struct DropoutKernels {
  // y = x / (1 - rate) where kept, 0 where dropped. x, y [B, ...]; sample i64 [B]: the global index of each sample.
  // Element i of a sample is kept iff word i % 4 of Philox4x32-10(counter = (i / 4, sample, step), key = (seed, key))
  // is at least rate * 2^32. The derivative is the same call on dy.
  void (&Dropout)(const TensorView& x, const TensorView& step, const TensorView& sample, const SamplePart& part,
                  const DropoutParameters& parameters, const TensorView& y);

  // y [B, ...] of f32 or f64; step, sample and part as of Dropout, which draws by the same words. Of element i of a
  // sample with word w, u = (w >> 8) / 2^24. kUniform: u. kNormal (Box and Muller): of elements 2j and 2j + 1 with u
  // and v, r cos(2 pi v) and r sin(2 pi v), where r = sqrt(-2 ln(1 - u)).
  void (&Random)(const TensorView& step, const TensorView& sample, const SamplePart& part,
                 const RandomParameters& parameters, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_DROPOUT_H_
