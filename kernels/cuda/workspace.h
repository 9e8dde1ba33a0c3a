// Scratch memory of a GPU's kernels, in bytes; attention's is in kernels/cuda/attention.h, a product's is
// CudaEinsum::WorkspaceBytes. Kernels that are not here take none. Only tests and the kernels themselves ask: what
// plans reckon with is in graph/targets/cuda.cc.
#ifndef TACC_KERNELS_CUDA_WORKSPACE_H_
#define TACC_KERNELS_CUDA_WORKSPACE_H_

#include <cstdint>

#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

// DispatchSlots. num_groups: of all samples.
int64_t DispatchSlotsWorkspaceBytes(int64_t num_groups);

// ChannelSums. of_channel: elements of a channel, in all images.
int64_t ChannelSumsWorkspaceBytes(int64_t channels, int64_t of_channel);

// EmbeddingGrad.
int64_t EmbeddingGradWorkspaceBytes(int64_t num_tokens, int64_t vocabulary, int64_t row_length, DType compute);

// ExpertMatmul, and ExpertMatmulGrad with `features` 0. slots: the elements of ids; features: those of y.
int64_t ExpertMatmulWorkspaceBytes(int64_t slots, int64_t num_experts, int64_t features, DType dtype);

// RmsNormGrad, LayerNormGrad and what accumulates them: num_sums (1: dw, 2: dw and db) partial sums in the compute
// dtype (f32, f64).
int64_t NormGradWorkspaceBytes(int64_t num_rows, int64_t row_length, int num_sums, DType compute);

// ReduceSum and ReduceMax of an x of these dims: at most 512 KiB.
int64_t ReduceWorkspaceBytes(const Dims& x, const Dims& dims);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_WORKSPACE_H_
