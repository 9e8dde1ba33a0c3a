// The row loops (norms, rotary, cross-entropy) of one instruction set; see loops.h.
#ifndef TACC_KERNELS_CPU_SIMD_ROWS_H_
#define TACC_KERNELS_CPU_SIMD_ROWS_H_

#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::simd::TACC_ISA {

void RmsNorm(const NormRows& rows, int64_t begin, int64_t end);
void RmsNormGrad(const NormGradRows& rows, int64_t begin, int64_t end);
void LayerNorm(const NormRows& rows, int64_t begin, int64_t end);
void LayerNormGrad(const NormGradRows& rows, int64_t begin, int64_t end);
void L2Normalize(const NormRows& rows, int64_t begin, int64_t end);
void L2NormalizeGrad(const NormGradRows& rows, int64_t begin, int64_t end);
void Rotary(const RotaryRows& rows, int64_t begin, int64_t end);
void CrossEntropy(const CrossEntropyRows& rows, int64_t begin, int64_t end);
void CrossEntropyGrad(const CrossEntropyRows& rows, int64_t begin, int64_t end);

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_ROWS_H_
