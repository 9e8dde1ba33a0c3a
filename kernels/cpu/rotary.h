// Rotary position embedding. Source: Su et al., "RoFormer", section 3.2.
// Legend: B batch, S sequence, H heads, D head dim, R rotary dims (even, at most D).
#ifndef TACC_KERNELS_CPU_ROTARY_H_
#define TACC_KERNELS_CPU_ROTARY_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

// Which elements form a pair: (i, i + R/2), as Hugging Face's rotate_half, or (2i, 2i + 1).
enum class RotaryStyle { kHalf, kInterleaved };
enum class RotaryDirection { kForward, kInverse };

// cos, sin [S, R/2]: of position * inv_freq[i], times attention_scale. Positions count from `first`. Angles are
// computed in f32 (position * inv_freq rounded once, as Hugging Face does) unless the views are f64.
void RopeTable(const std::vector<double>& inv_freq, double attention_scale, int64_t first, const TensorView& cos,
               const TensorView& sin);

// y = x [B,S,H,D] with the first R = 2 * cos.dims[1] elements of each head rotated, the rest copied. In place allowed.
void Rotary(const TensorView& x, const TensorView& cos, const TensorView& sin, RotaryStyle style,
            RotaryDirection direction, const TensorView& y);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_ROTARY_H_
