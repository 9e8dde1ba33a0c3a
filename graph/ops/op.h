#ifndef TACC_GRAPH_OPS_OP_H_
#define TACC_GRAPH_OPS_OP_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/graph.h"
#include "graph/ir/sharding.h"

namespace tacc::graph {

class Builder;
class Target;  // graph/ops/target.h

// What the facts of an op are asked about: one node's attributes and types (logical or local).
struct OpCall {
  const Attrs* attrs;
  std::vector<TensorType> operands;
  std::vector<TensorType> results;  // empty when types are being inferred

  const TensorType& in(int i) const { return operands[i]; }
  const TensorType& out(int i) const { return results[i]; }
  template <typename T>
  T attr(const std::string& name, T fallback = T()) const {
    return GetAttr<T>(*attrs, name, fallback);
  }
};

enum class AttrKind { kInt, kFloat, kBool, kString, kInts, kFloats, kStrings };
struct AttrSpec {
  const char* name;
  AttrKind kind;
  enum Presence { kRequired, kOptional } presence = kRequired;
};

// How an op's dims relate: factors. Sharding a factor shards every dim mapped to it.
struct Factor {
  int64_t size = 1;
  // The computation needs the whole extent on each rank: operands that are split there are gathered first.
  bool replicate = false;
  // May be split only into a number of shards that divides `size`: dims mapped to it are multiples of it and must be
  // cut at the same places (merged dims).
  bool even = false;
  // Dims of this smaller extent hold one entry for a group of the factor's (kv heads and query heads): they take the
  // longest prefix of the factor's axes that divides it and are whole over the rest. There may be a rest only when the
  // prefix leaves one group a shard. 0: none.
  int64_t groups = 0;
  // The extent is the number of shards of that factor, and it is split as that is: one entry a shard.
  int one_per_shard_of = -1;
  // Axes that an operand has on this factor and that it may not take go to that factor instead (sequence to heads).
  int move_to = -1;
  // With `replicate`: a layout may split it all the same, then the op is replaced by what OpDef::expand makes.
  bool expandable = false;
  // With `replicate`: dims mapped to it hold several tensors, one behind the other, or one of them. They may be split
  // in programs that are partitioned, where each rank has its share of each tensor (graph/passes/rewrite/join_products).
  bool joined = false;
};
struct Rule {
  static constexpr int kNone = -1;  // a dim that belongs to no factor: must be whole
  std::vector<Factor> factors;
  std::vector<std::vector<int>>
      in;  // [operand][dim] -> factor; one in `in` and absent from out[r] is reduced by a sum in result r
  std::vector<std::vector<int>> out;  // [result][dim] -> factor; a factor only in `out` is made from the shard's offset
  // Sets of operands in which the op is (jointly) linear: a pending value passes only when exactly the operands of one
  // set are pending on the axis. matmul: {{0},{1}}; add: {{0,1}}; scale, cast to a wider type: {{0}}; norm's gradient:
  // {{dy}}.
  std::vector<std::vector<int>> linear_in;
  // Operands that are summands of the result as they are: where a reduced factor is split over an axis, they must be
  // pending on it (the accumulator of einsum_accumulate).
  std::vector<int> addends;
  // The kernel honours the logical bounds of reduced factors. Without it, each operand that carries a padded reduced
  // factor must be masked to zero first.
  bool self_masking = false;

  int AddFactor(int64_t size) {
    factors.push_back({size});
    return static_cast<int>(factors.size()) - 1;
  }
};

// The derivative asks this for what it needs and adds nodes through `builder`.
struct VjpCall {
  Builder& builder;
  const Node& node;                        // the forward node
  const std::vector<ValueId>& cotangents;  // per result; kNoValue = zero. At least one is not.
  std::vector<ValueId>& gradients;         // per operand, out; left kNoValue where there is none
  const std::vector<char>& needed;         // per operand: is its gradient asked for?
  bool needs(int operand) const { return needed[operand] != 0; }
};

// OpDef::expand adds nodes through `builder` that compute the node's results from its operands with expandable factors
// split into shards[factor] (1: not split).
struct ExpandCall {
  Builder& builder;
  const Node& node;
  const std::vector<int64_t>& shards;
  std::vector<ValueId>& results;  // per result, out
};

// All the facts of one op. Functions may assume that arity and attributes have been checked; all but `infer` that types
// fit.
struct OpDef {
  std::string name;
  int min_operands = 0;
  int max_operands = 0;  // -1: any number
  int num_results = 1;   // -1: decided by inference
  std::vector<AttrSpec> attrs;

  // Types of the results. Errors: InvalidArgument "what: got against wanted". Attributes are logical also in a
  // partitioned graph, so inference is asked about logical types (LogicalCallOf); local types follow from the
  // placements. Absent: the node declares its types (input, param, read).
  std::function<absl::StatusOr<std::vector<TensorType>>(const OpCall&)> infer;
  // Adds the nodes of the derivative. Absent: the op has none (integers, optimizer, ...), and a cotangent that reaches
  // it is an error, unless `no_gradient`.
  std::function<absl::Status(VjpCall&)> derive;
  bool no_gradient = false;  // cotangents stop here silently (comparisons, tables, masks)
  // The sharding rule. `call` has logical types, results included.
  std::function<absl::StatusOr<Rule>(const OpCall&)> rule;
  // For rules with expandable factors. `call` is asked about logical types; the nodes made are logical too.
  std::function<absl::Status(ExpandCall&)> expand;
  // Floating-point operations (multiply and add count two), on the types given. Absent: negligible.
  std::function<double(const OpCall&)> flops;
  bool is_matmul = false;  // einsum and attention kinds: counted in MFU
  // Result i aliases operand aliases[i] (same bytes, no work); -1 or absent: none. May depend on attributes: returns {}
  // when not.
  std::function<std::vector<int>(const OpCall&)> aliases;
  // Where an aliasing result begins, in bytes from the start of its operand. Absent: 0.
  std::function<int64_t(const OpCall&)> alias_offset_bytes;
  // Result i may be written over operand reuses[i] when that has no later use; -1: none.
  std::function<std::vector<int>(const OpCall&)> reuses;
  // The operands from this one on are parts of one tensor, one behind the other in dim 0. Where they lie so in memory
  // the kernel takes them as they lie; elsewhere it puts them so in its scratch memory first. -1: none are.
  int first_part = -1;
  // Scratch memory that the target's kernel takes beside its results and copies of parts, in bytes. Absent: none.
  std::function<int64_t(const OpCall&, const Target&)> workspace_bytes;
  // What its kernel reads and writes, in bytes. Absent: all of its operands and results.
  std::function<int64_t(const OpCall&)> touched_bytes;
  // What it computes depends on where its elements lie in the sequence: it takes the attribute `zigzag`
  // (graph/ir/sequence_order.h).
  bool positional = false;
  // The result is the sum of what it makes of each operand alone. The rule is asked about one operand; those of a node
  // may be split each in its own way, as long as all leave the result pending on the same axes.
  bool sums_operands = false;
  // Takes one more operand, document_start, with which it stays within documents (graph/passes/partition/separate_documents.h).
  bool takes_document_start = false;
  bool has_side_effect = false;  // kept by dce; never merged by cse
  bool is_collective = false;
};

// The axes that a dim of extent `extent` takes when `factor`, to which it is mapped, is split over `axes`.
AxisList DimAxes(const Factor& factor, int64_t extent, const AxisList& axes, const Mesh& mesh);

// The explicit table of all ops. Passes ask it; they know no op by name unless the pass is about that op.
class OpTable {
 public:
  OpTable();
  const OpDef* Find(absl::string_view name) const;
  // By name, for docs and tests.
  const std::map<std::string, OpDef>& ops() const { return ops_; }
  void Add(OpDef op);

 private:
  std::map<std::string, OpDef> ops_;
};

// Checks arity, attribute names and kinds of `op`, then infers. `dtype` attributes are checked to name a dtype.
absl::StatusOr<std::vector<TensorType>> InferTypes(const OpDef& op, const Attrs& attrs,
                                                   const std::vector<TensorType>& operands);

// The node as an OpCall, with local types.
OpCall CallOf(const Graph& graph, const Node& node);
// The same with logical types (of the placements, where there are any).
OpCall LogicalCallOf(const Graph& graph, const Node& node);

// OpDef::touched_bytes.
int64_t TouchedBytes(const OpDef& def, const OpCall& call);
// What the target's kernel takes beside its results, in bytes: OpDef::workspace_bytes, and where its parts do not lie
// one behind the other a copy of them.
enum class Parts { kInARow, kApart };
inline constexpr int64_t kScratchAlignment = 64;
int64_t WorkspaceBytes(const OpDef& def, const OpCall& call, const Target& target, Parts parts);

// One function a family file; called by OpTable's constructor in op.cc.
void AddLeafOps(OpTable& table);         // input param read store output constant iota
void AddElementwiseOps(OpTable& table);  // add ... cast, activations and their gradients, select
void AddShapeOps(OpTable& table);        // reshape transpose slice concat pad broadcast reduce_*
void AddMatmulOps(OpTable& table);       // einsum einsum_accumulate einsum_joined
void AddNormOps(OpTable& table);         // rms_norm add_rms_norm layer_norm ... l2_normalize
void AddAttentionOps(OpTable& table);    // attention rotary rope_table
void AddTokenOps(OpTable& table);        // embedding cross_entropy logsumexp dropout
void AddExpertOps(OpTable& table);       // softmax top_k expert_matmul mul_rows
void AddDispatchOps(OpTable& table);     // dispatch_slots dispatch combine
void AddOptimizerOps(OpTable& table);    // adamw lr_schedule sum_squares is_finite
void AddCollectiveOps(OpTable& table);   // all_gather reduce_scatter all_reduce all_to_all shard_slice ... send recv

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_OP_H_
