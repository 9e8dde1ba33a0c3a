#ifndef TACC_GRAPH_PASSES_PARTITION_RESHARD_H_
#define TACC_GRAPH_PASSES_PARTITION_RESHARD_H_

#include <optional>
#include <string>

#include "graph/ir/graph.h"

namespace tacc::graph {

// Adds a value to a partitioned graph.
ValueId AddLocalValue(Graph& graph, const Mesh& mesh, const std::string& name, const TensorType& global, Sharding s);

// Appends nodes to a partitioned graph, for one node of the logical graph.
class ReshardEmitter {
 public:
  // The nodes get the module and the recompute number of `at`. All references must outlive it.
  ReshardEmitter(const Mesh& mesh, const Node& at, Graph& graph) : mesh_(mesh), at_(at), graph_(graph) {}

  // The value in the sharding asked for, by the fewest collectives: pending -> split: reduce_scatter; pending -> whole:
  // all_reduce; split elsewhere: all_to_all; whole -> split: shard_slice; split -> whole: all_gather. With
  // `summed_as`, summands travel as that type where it is narrower. A pending axis that the value does not have cannot
  // be made: the caller compares.
  ValueId Reshard(ValueId v, const Sharding& target, std::optional<DType> summed_as);

  // One local node or collective.
  ValueId Emit(const Op& op, ValueId operand, const TensorType& global, Sharding s, Attrs attrs);

 private:
  const Sharding& sharding(ValueId v) const { return graph_.values[v].placement->sharding; }
  ValueId ResolvePending(ValueId v, const Sharding& target, std::optional<DType> summed_as);
  ValueId MoveAxes(ValueId v, const Sharding& target);
  ValueId SliceFree(ValueId v, const Sharding& target);
  ValueId GatherExtra(ValueId v, const Sharding& target);
  ValueId Narrowed(ValueId v, std::optional<DType> dtype, Attrs* attrs);

  const Mesh& mesh_;
  const Node& at_;
  Graph& graph_;
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_RESHARD_H_
