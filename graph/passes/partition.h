#ifndef TACC_GRAPH_PASSES_PARTITION_H_
#define TACC_GRAPH_PASSES_PARTITION_H_

#include <string>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// What the plan says about a layout; the rest follows from the ops' rules.
struct PartitionOptions {
  Mesh mesh;
  // Axes that split the batch (dim 0 of every input of rank 1 or more), major to minor.
  AxisList batch_axes;
  // Axes that shard weights, copies, moments and gradients at rest (ZeRO-3); the value is gathered where it is used.
  AxisList at_rest_axes;
  // In which gradients travel to be summed; the sum itself is kept in fp32.
  DType reduce_dtype = DType::kF32;
};

// How a tensor of these dims lies at rest: the axes on the first dim whose padding wastes at most 1 %, else on the dim
// that wastes least.
Sharding AtRestSharding(const Dims& dims, const Mesh& mesh, const AxisList& axes);

// A logical program as each rank's own. One mechanism for every layout: in line order each node takes shardings for its
// factors from its operands (largest first), pending values pass only where the op is linear in them, operands are
// resharded to what the factors say, and the results follow. Collectives come from nothing but the difference between
// what a value is and what a node needs:
//   pending -> split: reduce_scatter; pending -> whole: all_reduce; split -> whole: all_gather; split elsewhere:
//   all_to_all; whole -> split: shard_slice. A reshard is made once per (value, sharding) and graph.
// Gradients stay pending on the batch axes that do not shard them, until the update.
//
// Errors: Internal for a rule that does not fit its op.
absl::StatusOr<Program> Partition(const Program& program, const OpTable& ops, const PartitionOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_H_
