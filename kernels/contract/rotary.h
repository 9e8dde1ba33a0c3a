// Rotary position embedding. Source: Su et al., "RoFormer", section 3.2.
// Legend: B batch, S sequence, H heads, D head dim, R rotary dims (even, at most D).
#ifndef TACC_KERNELS_CONTRACT_ROTARY_H_
#define TACC_KERNELS_CONTRACT_ROTARY_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels {

// Which elements form a pair: (i, i + R/2), as Hugging Face's rotate_half, or (2i, 2i + 1).
enum class RotaryStyle { kHalf, kInterleaved };

enum class RotaryDirection { kForward, kInverse };

struct RotaryKernels {
  // positions i32 [S] or [B,S]: those given, less document_start i32 [B,S] where that has data. `given` may be shorter
  // than S: the rest is padding.
  void (&Positions)(const std::vector<int64_t>& given, const TensorView& document_start, const TensorView& positions);

  // cos, sin [S, R/2] or [B, S, R/2]: of position * inv_freq[i], times attention_scale; positions as above. Angles are
  // computed in f32 (position * inv_freq rounded once, as Hugging Face does) unless the views are f64.
  void (&RopeTable)(const std::vector<double>& inv_freq, double attention_scale, const std::vector<int64_t>& given,
                    const TensorView& document_start, const TensorView& cos, const TensorView& sin);

  // y = x [B,S,H,D] with the first R = 2 * cos.dims.back() elements of each of the first `heads` heads (-1: all)
  // rotated, the rest copied. cos and sin: one table for all rows, or [B,S,R/2]. In place allowed: then the rest is not
  // touched.
  void (&Rotary)(const TensorView& x, const TensorView& cos, const TensorView& sin, RotaryStyle style,
                 RotaryDirection direction, const TensorView& y, int64_t heads);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_ROTARY_H_
