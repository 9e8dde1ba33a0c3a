// The optimizers' loops of one instruction set; see loops.h.
#ifndef TACC_KERNELS_CPU_SIMD_OPTIMIZER_H_
#define TACC_KERNELS_CPU_SIMD_OPTIMIZER_H_

#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::simd::TACC_ISA {

void Update(const WeightUpdate& update, int64_t begin, int64_t end);

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_OPTIMIZER_H_
