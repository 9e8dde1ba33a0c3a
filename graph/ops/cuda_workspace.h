#ifndef TACC_GRAPH_OPS_CUDA_WORKSPACE_H_
#define TACC_GRAPH_OPS_CUDA_WORKSPACE_H_

#include <cstdint>

#include "graph/ops/einsum_spec.h"
#include "graph/ops/op.h"

// Scratch bytes of a GPU's kernels (kernels/cuda), LibTorch's own included: upper bounds, which worker/rank's tests
// hold against what the kernels take where that shows on a host. cuBLAS's workspace comes on top, once a rank.
namespace tacc::graph {

// What cuBLAS keeps for the stream of a rank, and what blocks of the workspace lose to its grain of 512 bytes.
inline constexpr int64_t kCudaLibraryBytes = (int64_t{32} << 20) + (int64_t{1} << 20);

// The arguments are those of graph/ops/workspace.h.
int64_t CudaEinsumWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b, const TensorType& y);
int64_t CudaAttentionWorkspaceBytes(const TensorType& q, const TensorType& k);
int64_t CudaAttentionGradWorkspaceBytes(const TensorType& q, const TensorType& k);
int64_t CudaExpertMatmulWorkspaceBytes(const TensorType& ids, const TensorType& w, const TensorType& y);
int64_t CudaExpertMatmulGradWorkspaceBytes(const TensorType& ids, const TensorType& dw);
int64_t CudaDispatchSlotsWorkspaceBytes(const TensorType& row_ids);
int64_t CudaNormGradWorkspaceBytes(const TensorType& x, int num_sums);
// dtable from ids.
int64_t CudaEmbeddingGradWorkspaceBytes(const TensorType& ids, const TensorType& dtable);
// reduce_sum, reduce_max: partial results.
int64_t CudaReduceWorkspaceBytes();
int64_t CudaSumSquaresWorkspaceBytes(int64_t num_operands);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_CUDA_WORKSPACE_H_
