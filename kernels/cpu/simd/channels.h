// The loops of one channel of one image, of one instruction set; see loops.h.
#ifndef TACC_KERNELS_CPU_SIMD_CHANNELS_H_
#define TACC_KERNELS_CPU_SIMD_CHANNELS_H_

#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::simd::TACC_ISA {

void AddSums(In x, In z, int64_t begin, int64_t end, double* sum, double* products);
void Affine(const AffineOf& f, int64_t begin, int64_t end);

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_CHANNELS_H_
