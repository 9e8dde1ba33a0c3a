#ifndef TACC_GRAPH_OPS_WORKSPACE_H_
#define TACC_GRAPH_OPS_WORKSPACE_H_

#include <cstdint>

#include "graph/ops/einsum_spec.h"
#include "graph/ops/op.h"

// Scratch bytes of the CPU's kernels, LibTorch's own included: upper bounds, which worker/rank's cpu_kernels_test holds
// against what is really taken.
namespace tacc::graph {

// Which tensors of einsum(a, b) -> y a matrix product must permute into a copy: their letters are not in groups, or the
// batch letters come last.
struct EinsumCopies {
  bool a = false, b = false, y = false;
};
EinsumCopies EinsumCopiesOf(const EinsumSpec& spec, const TensorType& a, const TensorType& b);

// einsum(a, b) -> y.
int64_t EinsumWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b, const TensorType& y,
                             const Target& target);
// y = acc + einsum(a, b).
int64_t EinsumAccumulateWorkspaceBytes(const EinsumSpec& spec, const TensorType& a, const TensorType& b,
                                       const TensorType& y, const Target& target);

// q [B,S,H,D], k [B,T,K,D]: for each thread the keys and values of one head, and blocks. `key_runs`: pieces of the keys
// whose positions follow each other, at most.
int64_t AttentionWorkspaceBytes(const TensorType& q, const TensorType& k, int64_t key_runs, int threads);
int64_t AttentionGradWorkspaceBytes(const TensorType& q, const TensorType& k, int64_t key_runs, int threads);

// expert_matmul(x, ids, w) -> y, and its gradient of w from rows a and b: the order of the slots, and a block of sorted
// rows.
int64_t ExpertMatmulWorkspaceBytes(const TensorType& ids, const TensorType& x, const TensorType& w, const TensorType& y,
                                   const Target& target);
int64_t ExpertMatmulGradWorkspaceBytes(const TensorType& ids, const TensorType& a, const TensorType& b,
                                       const Target& target);

// dispatch_slots with rows of the ids i32[B,G,D,C]: how full each of the D buffers is.
int64_t DispatchSlotsWorkspaceBytes(const TensorType& row_ids);

// Gradients of rms_norm and layer_norm with `num_sums` gradients of weights over the last dim of x.
int64_t NormGradWorkspaceBytes(const TensorType& x, int num_sums);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_WORKSPACE_H_
