// The buffers of kernels/cpu/dispatch.h on the GPU: the same functions and contracts, on device memory.
#ifndef TACC_KERNELS_CUDA_DISPATCH_H_
#define TACC_KERNELS_CUDA_DISPATCH_H_

#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

void DispatchSlots(const TensorView& ids, int64_t num_experts, const TensorView& places, const TensorView& row_ids,
                   const TensorView& overflow);
// Scratch of DispatchSlots; num_groups: of all samples.
int64_t DispatchSlotsWorkspaceBytes(int64_t num_groups);

void Dispatch(const TensorView& x, const TensorView& places, const TensorView& rows);
void Combine(const TensorView& rows, const TensorView& places, const TensorView& y);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_DISPATCH_H_
