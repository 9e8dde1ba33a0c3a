#ifndef TACC_GRAPH_PASSES_PARTITION_LAYOUT_H_
#define TACC_GRAPH_PASSES_PARTITION_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/passes/partition/partition.h"

namespace tacc::graph {

// What the axes of a mesh mean, in one place; their order on the mesh does not matter:
//   dp    splits the batch
//   fsdp  splits the batch, and states at rest
//   ep    splits the batch, and the experts
//   cp    splits the sequence, over a ring, and states at rest
//   sp    splits the sequence, in attention the heads (Ulysses), and states at rest
//   tp    splits vocab, heads, kv_heads and mlp, and the residual stream's sequence
//   tpq   the same but kv_heads: for fewer kv heads than ranks
// pp and what else a mesh has is not partition's business.
// `residual_module`: the module whose result is the residual stream, f32[B,S,embed]; "": there is none to keep split.
PartitionOptions LayoutOf(const Mesh& mesh, const std::string& residual_module);

// CompileOptions::sequence_blocks of the mesh: the size of cp where cp or sp split the sequence, else 0.
int64_t SequenceBlocks(const Mesh& mesh);

// The axes, major to minor, into which tensor parallelism over `ranks` is cut for this model: tp alone, or tp and tpq.
// Sizes of 1 are left out. Errors: InvalidArgument when the model's weights name no axes to split, or its heads do not
// divide, with the legal values.
absl::StatusOr<std::vector<Mesh::Axis>> TensorAxes(const Graph& forward, int64_t ranks);

// The axes of context parallelism over `ranks`, of which `ulysses` exchange heads and the others form a ring: cp, sp.
// Sizes of 1 are left out. `tensor_axes`: what TensorAxes gave. Errors: InvalidArgument when `ulysses` does not divide
// the ranks or the heads that tensor parallelism leaves, or the sequence cannot be cut, with the legal values.
absl::StatusOr<std::vector<Mesh::Axis>> ContextAxes(const Graph& forward, int64_t ranks, int64_t ulysses,
                                                    const std::vector<Mesh::Axis>& tensor_axes);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_LAYOUT_H_
