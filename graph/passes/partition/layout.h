#ifndef TACC_GRAPH_PASSES_PARTITION_LAYOUT_H_
#define TACC_GRAPH_PASSES_PARTITION_LAYOUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/passes/partition/partition.h"

namespace tacc::graph {

// What the axes of a mesh split, as the table in graph/ir/axis.h says; their order on the mesh does not matter. pp and
// what else a mesh has is not partition's business.
// `residual_module`: the module whose result is the residual stream, f32[B,S,embed]; "": there is none to keep split.
PartitionOptions LayoutOf(const Mesh& mesh, const std::string& residual_module);

// CompileOptions::sequence_blocks of the mesh: the size of cp where cp or sp split the sequence, else 0.
int64_t SequenceBlocks(const Mesh& mesh);

// The axes, major to minor, into which tensor parallelism over `ranks` is cut for this model: tp alone, or tp and tpq.
// Sizes of 1 are left out. Errors: InvalidArgument when the model's weights name no axes to split, or its heads do not
// divide, with the legal values.
absl::StatusOr<std::vector<Mesh::Axis>> TensorAxes(const Graph& forward, int64_t ranks);

// The axes of context parallelism over `ranks`, of which `ulysses` exchange heads and the others form a ring: cp, sp.
// Sizes of 1 are left out. `tensor_axes`: what TensorAxes gave. `shorter`: other lengths that are cut too. Errors:
// InvalidArgument when `ulysses` does not divide the ranks or the heads that tensor parallelism leaves, or the sequence
// cannot be cut, with the legal values.
absl::StatusOr<std::vector<Mesh::Axis>> ContextAxes(const Graph& forward, int64_t ranks, int64_t ulysses,
                                                    const std::vector<Mesh::Axis>& tensor_axes,
                                                    const std::vector<int64_t>& shorter = {});

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_LAYOUT_H_
