#ifndef TACC_KERNELS_CUDA_ATEN_KERNELS_H_
#define TACC_KERNELS_CUDA_ATEN_KERNELS_H_

#include "kernels/contract/aten.h"

namespace tacc::kernels::cuda {

extern const AtenKernels kAten;

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ATEN_KERNELS_H_
