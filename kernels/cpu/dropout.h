#ifndef TACC_KERNELS_CPU_DROPOUT_H_
#define TACC_KERNELS_CPU_DROPOUT_H_

#include "kernels/contract/dropout.h"
#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::cpu {

// What all runs of a step share.
simd::DropoutRun DropoutOf(const DropoutParameters& parameters, int64_t step);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_DROPOUT_H_
