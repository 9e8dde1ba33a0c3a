#ifndef TACC_GRAPH_PASSES_PARTITION_GRAPH_PARTITIONER_H_
#define TACC_GRAPH_PASSES_PARTITION_GRAPH_PARTITIONER_H_

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ir/program.h"
#include "graph/ir/sharding.h"
#include "graph/ops/op.h"
#include "graph/passes/modules/units.h"
#include "graph/passes/partition/merge_dims.h"
#include "graph/passes/partition/partition.h"
#include "graph/passes/partition/place_states.h"
#include "graph/passes/partition/reshard.h"

namespace tacc::graph {

// Axes on which the sums that are carried across calls are pending where they are made.
using PendingByState = std::map<std::string, AxisList>;

// Partitions one graph.
class GraphPartitioner {
 public:
  // The logical graph must outlive it. With `sums`, nothing is carried across calls: where a gradient or a counter is
  // complete, its pending axes are noted there.
  GraphPartitioner(const Graph& logical, const Program& program, const StateIndex& states, const OpTable& ops,
                   const PartitionOptions& options, const ParameterForms& forms, PendingByState* sums);
  absl::StatusOr<Graph> Run();

 private:
  const Sharding& sharding(ValueId v) const { return out_.values[v].placement->sharding; }
  const Sharding& home(ValueId logical) const { return sharding(homes_[logical]); }
  static bool IsLeaf(const Node& node) { return node.operands.empty(); }
  absl::Status Visit(const Node& node);

  // Where the op moved axes from one dim to another, its results go back to how the operand of the same dims lies: what
  // follows works on the sequence again, not on heads. As they were made they are kept for the derivative.
  absl::Status MoveBack(const Node& node);
  absl::Status VisitRead(const Node& node, const State& state);

  // A gradient is brought to where its update takes place, once, before its norm is taken: in the dims that it has
  // there.
  void BringToUpdate(ValueId v);
  absl::Status VisitStore(const Node& node, const State& state);

  // Is the value what a gradient's or counter's state held before this call?
  bool IsCarriedSum(ValueId logical) const;

  // Keeps pinned results and the residual stream where the plan wants them.
  absl::Status ApplyHome(const Node& node);
  absl::Status VisitOp(const Node& node);

  // Replaces the node by those that its op makes of it, and goes on with these.
  absl::Status Expand(const Node& node, const OpDef& def, const std::vector<AxisList>& axes);
  static absl::Status CheckRule(const Rule& rule, const OpCall& call);

  // Axes for each factor. Weights come first, as they are used, and their gradients, which are to lie alike: so the
  // weight is gathered over the axes that shard it at rest, and the activation over those that split the weight. Then
  // the operands as they are, the largest first, so that it stays where it is.
  std::vector<AxisList> AssignFactors(const Node& node, const Rule& rule, const OpCall& call) const;

  // What must be summed and would be summed whole is summed at the residual's home instead, if it has its dims. True
  // when the factors changed.
  bool ResolveAtHome(const Node& node, const Rule& rule, const OpCall& call, const AxisList& kept,
                     std::vector<AxisList>& axes) const;

  // How the weight that the value is, is used; null for other values.
  const Sharding* InUse(ValueId logical) const { return FormInUse(weight_of_[logical], logical); }
  // How the parameter lies in use, in the dims that the value has; null where it has others.
  const Sharding* FormInUse(const std::string& parameter, ValueId logical) const;
  // Is the node a reshape between the dims of a parameter and those of its shards?
  bool IsMerge(const Node& node) const;
  bool IsMergeOf(const Node& reshape, const std::string& parameter) const;
  // Does the node make a weight smaller, element by element? Then it works where the weight rests, and less is
  // gathered.
  bool NarrowsWeight(const Node& node, const Rule& rule, const OpCall& call) const;
  const Node* Producer(ValueId logical) const;

  // Whether a node that makes a summand of a gradient keeps it pending; none: the options do not say.
  std::optional<bool> StaysPending(const Node& node, int axis) const;
  // The pending axes that may pass through the node.
  AxisList KeptPending(const Node& node, const Rule& rule, const std::vector<AxisList>& axes) const;

  // Zeroes what padding an operand carries on factors that the node sums over.
  ValueId MaskReducedPadding(ValueId v, const Rule& rule, int operand, const OpCall& call,
                             const std::vector<AxisList>& axes);

  // The value in the sharding asked for, by the fewest collectives. A form that takes more memory than the value itself
  // is made once while the line stays in a unit, and again when it comes back; others, made by sums and exchanges, are
  // kept. Weights are gathered once a graph: the schedule says when again.
  ValueId Reshard(ValueId logical, const Sharding& target);

  void AddForm(ValueId logical, ValueId v) { resharded_[logical].push_back({sharding(v), v, run_}); }
  bool IsKept(ValueId logical, ValueId form) const;

  // What to make the target from: the value, or a form of it that is kept and only has to be gathered, so that a sum or
  // an exchange is done once.
  ValueId StartOf(ValueId logical, const Sharding& target) const;

  // What is summed over ranks on the way to a gradient, or read from one.
  void FindGradients();

  // A node without operands (a constant, a table) is made in the sharding that is needed. Only zero may be made
  // pending.
  static bool CanBeMadeAnywhere(const Node& node, const Sharding& target);

  ReshardEmitter emitter() { return ReshardEmitter(mesh_, *node_, out_); }
  ValueId AddValue(const std::string& name, const TensorType& global, Sharding s);
  ValueId EmitLeaf(const Node& node, const Sharding& s);
  void EmitEnd(const Node& node, ValueId value);

  struct Resharded {
    Sharding sharding;
    ValueId value;
    int run;
  };

  const std::vector<Node>& nodes_;
  std::vector<int> producers_;  // logical value -> index of its node in nodes_, or -1
  Graph logical_;               // its values; its nodes are those being expanded
  const StateIndex& states_;    // have their shardings
  const OpTable& ops_;
  const PartitionOptions& options_;
  const Mesh& mesh_;
  const ParameterForms& forms_;
  PendingByState* const sums_;
  Units units_;
  int run_ = 0;  // counts the stretches of the line that lie in one unit
  const Node* node_ = nullptr;
  Graph out_;
  Dims residual_dims_;
  std::map<ValueId, std::vector<AxisList>> pinned_;  // logical values
  std::vector<ValueId> homes_;                       // logical value -> the partitioned value it was made as
  std::map<ValueId, std::vector<Resharded>> resharded_;
  std::vector<std::string> weight_of_;    // logical value -> the parameter that it is, as read or narrower, or ""
  std::vector<std::string> gradient_of_;  // logical value -> the parameter whose gradient, or summand of it, it is
};

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_GRAPH_PARTITIONER_H_
