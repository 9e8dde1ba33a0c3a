#ifndef TACC_GRAPH_PASSES_PARTITION_PARTITION_H_
#define TACC_GRAPH_PASSES_PARTITION_PARTITION_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// What the plan says about a layout; the rest follows from the ops' rules.
struct PartitionOptions {
  Mesh mesh;
  // Axes that split the batch (dim 0 of every input of rank 1 or more), major to minor.
  AxisList batch_axes;
  // Axes that split the sequence (dim 1 of every input of rank 2 or more).
  AxisList sequence_axes;
  // Axes that split dims of weights in use, by the dims' names (State::axes): tensor and expert parallelism.
  std::map<std::string, AxisList> in_use_axes;
  // How single weights are used, by name, instead.
  std::map<std::string, Sharding> pinned_weights;
  // Axes that shard states at rest, beside those that split them in use.
  AxisList at_rest_axes;
  // Which states these axes shard: 1: optimizer states and fp32 masters of bf16 weights; 2: gradients too; 3: all, so
  // that weights are gathered where they are used.
  int zero_stage = 3;
  // With zero_stage 3: whether gradients are sharded too, so that each micro-batch's are reduced. Otherwise they are
  // whole, as with zero_stage 1, and the update reduces their sum.
  bool reduce_each_micro_batch = true;
  // By parameter: the axes on which its gradient stays pending between micro-batches, as another program has it that
  // works on the same states. Absent: where less is sent.
  std::map<std::string, AxisList> pending_gradients;
  // The residual stream: results of this module with as many dims as `dims` are kept so, and sums of values of the same
  // logical dims are made so when they must be made.
  struct Home {
    std::string module;
    std::vector<AxisList> dims;
  };
  std::optional<Home> residual;
  // By module path, how the module's results lie (what later modules of the forward read) that have as many dims.
  std::map<std::string, std::vector<AxisList>> pinned_results;
  // Module paths. What is gathered for one is gathered again when the line comes back to it (in the backward).
  std::vector<std::string> units;
  // In which gradients travel to be summed; the sum itself is kept in fp32.
  DType reduce_dtype = DType::kF32;
};

// Makes a logical program each rank's own, and returns true. One mechanism for every layout: in line order each node
// takes shardings for its factors, first from weights as they are used (and for their gradients), then from its largest
// operands; pending values pass only where the op is linear in them, operands are resharded to what the factors say,
// and the results follow. Collectives come from nothing but the difference between what a value is and what a node
// needs:
//   pending -> split: reduce_scatter; pending -> whole: all_reduce; split -> whole: all_gather; split elsewhere:
//   all_to_all; whole -> split: shard_slice. A reshard is made once per (value, sharding) while the line stays in a
//   unit.
// Gradients stay pending on the axes that do not shard them, until the update.
//
// Errors: Internal for a rule that does not fit its op.
absl::StatusOr<bool> Partition(Program& program, const OpTable& ops, const PartitionOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_PARTITION_H_
