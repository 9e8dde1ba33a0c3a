// What all passes know of an op: its types, its sharding rule, its gradient, its cost. A family of ops is a file that
// fills these.
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

// One node's attributes and types (logical or local), about which the facts of its op are asked.
struct OpCall {
  const Attrs* attrs;  // borrowed from the node
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

// A loop of an op's computation, to which dims of its operands and results are mapped. Sharding a factor shards every
// dim mapped to it.
struct Factor {
  int64_t size = 1;
  // The computation needs the whole extent on each rank: operands that are split there are gathered first.
  bool replicate = false;
  // The number of shards must divide `size`: dims mapped to the factor are multiples of it and must be cut at the same
  // places (merged dims).
  bool even = false;
  // Dims of this smaller extent hold one entry for each group of the factor's entries (kv heads and query heads). They
  // take the longest prefix of the factor's axes that divides it and are whole over the rest. There may be a rest only
  // when the prefix leaves one group a shard. 0: none.
  int64_t groups = 0;
  // Index of the factor whose shards this one counts, one entry a shard: it is split as that factor is. -1: none.
  int one_per_shard_of = -1;
  // Index of the factor that takes the axes which an operand has on this one and which this one may not take (sequence
  // to heads). -1: none.
  int move_to = -1;
  // With `replicate`: a layout may split it all the same; OpDef::expand then replaces the op.
  bool expandable = false;
  // With `replicate`: dims mapped to it hold one tensor, or several one behind the other. Partitioned programs may
  // split them, so that each rank has its share of each tensor (graph/passes/rewrite/join_products).
  bool joined = false;
};
// How an op's operands and results map to its factors, from which every sharding of it follows.
struct Rule {
  static constexpr int kNone = -1;  // a dim that belongs to no factor: must be whole
  std::vector<Factor> factors;
  // [operand][dim] -> factor; one in `in` and absent from out[r] is reduced by a sum in result r.
  std::vector<std::vector<int>> in;
  // [result][dim] -> factor; one only in `out` is made from the shard's offset.
  std::vector<std::vector<int>> out;
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

// What OpDef::derive is given: it reads the forward node and adds nodes through `builder`. Valid during the call.
struct VjpCall {
  Builder& builder;
  const Node& node;                        // the forward node
  const std::vector<ValueId>& cotangents;  // per result; kNoValue = zero. At least one is not.
  std::vector<ValueId>& gradients;         // per operand, out; left kNoValue where there is none
  const std::vector<char>& needed;         // per operand: is its gradient asked for?
  bool needs(int operand) const { return needed[operand] != 0; }
};

// What OpDef::expand is given: it adds nodes through `builder` that compute the node's results from its operands, with
// expandable factors split into shards[factor] (1: not split). Valid during the call.
struct ExpandCall {
  Builder& builder;
  const Node& node;
  const std::vector<int64_t>& shards;
  std::vector<ValueId>& results;  // per result, out
};

// All the facts of one op. Its functions are pure. They may assume that arity and attributes have been checked and, all
// but `infer`, that types fit.
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
  // Replaces the op, for rules with expandable factors (ExpandCall). The nodes are asked about and made with logical
  // types.
  std::function<absl::Status(ExpandCall&)> expand;
  // Floating-point operations (multiply and add count two), on the types given. Absent: negligible.
  std::function<double(const OpCall&)> flops;
  bool is_matmul = false;  // einsum and attention kinds: counted in MFU
  bool is_repeat = false;  // of products that another op has made: not counted
  // Operands of a product that keep their type in mixed precision. Absent: none.
  std::function<std::vector<int>(const OpCall&)> exact_operands;
  // Result i aliases operand aliases[i] (same bytes, no work); -1 or absent: none. Where attributes decide, {} says
  // that nothing aliases.
  std::function<std::vector<int>(const OpCall&)> aliases;
  // Where an aliasing result begins, in bytes from the start of its operand. Absent: 0.
  std::function<int64_t(const OpCall&)> alias_offset_bytes;
  // Result i may be written over operand reuses[i] when that has no later use; -1: none.
  std::function<std::vector<int>(const OpCall&)> reuses;
  // The operands from this one on are parts of one tensor, one behind the other in dim 0. The kernel takes them where
  // they lie so in memory, and else copies them so into its scratch memory first. -1: none are.
  int first_part = -1;
  // Bytes of scratch memory that the target's kernel takes, without its results and copies of parts. Absent: none.
  std::function<int64_t(const OpCall&, const Target&)> workspace_bytes;
  // Bytes that its kernel reads and writes. Absent: those of all operands and results.
  std::function<int64_t(const OpCall&)> touched_bytes;
  // The values depend on the positions of elements in the sequence: the op takes the attribute `zigzag`
  // (graph/ir/sequence_order.h).
  bool positional = false;
  // f(a, b, ...) = f(a) + f(b) + ... The rule is asked about one operand. A node's operands may be split each in its
  // own way, as long as all leave the result pending on the same axes.
  bool sums_operands = false;
  // Takes one more operand, document_start, with which it stays within documents
  // (graph/passes/partition/separate_documents.h).
  bool takes_document_start = false;
  bool has_side_effect = false;  // kept by dce; never merged by cse
  bool is_collective = false;
};

// Returns the axes that a dim of extent `extent`, mapped to `factor`, takes when `factor` is split over `axes`.
AxisList DimAxes(const Factor& factor, int64_t extent, const AxisList& axes, const Mesh& mesh);

// The table of all ops. Passes ask it; they know no op by name unless the pass is about that op. Threads may
// share it when nobody adds to it.
class OpTable {
 public:
  OpTable();
  // Null when no op has the name. Lives as long as the table.
  const OpDef* Find(absl::string_view name) const;
  // All ops by name, for docs and tests.
  const std::map<std::string, OpDef>& ops() const { return ops_; }
  // Adds `op`, or puts it in the place of the one with its name.
  void Add(OpDef op);

 private:
  std::map<std::string, OpDef> ops_;
};

// Types of a node's results. Checks arity, and names and kinds of attributes (`dtype` must name one), before it infers.
// Errors: InvalidArgument "what: got against wanted".
absl::StatusOr<std::vector<TensorType>> InferTypes(const OpDef& op, const Attrs& attrs,
                                                   const std::vector<TensorType>& operands);

// The node as an OpCall with local types. The graph's node must stay while it is used.
OpCall CallOf(const Graph& graph, const Node& node);
// The same with logical types (of the placements, where there are any).
OpCall LogicalCallOf(const Graph& graph, const Node& node);

// Bytes that the kernel reads and writes: OpDef::touched_bytes, or its default.
int64_t TouchedBytes(const OpDef& def, const OpCall& call);
inline constexpr int64_t kScratchAlignment = 64;
// Whether the parts of an operand (OpDef::first_part) lie one behind the other.
enum class Parts { kInARow, kApart };
// Bytes that the target's kernel takes beside its results: OpDef::workspace_bytes, and a copy of its parts where they
// are apart.
int64_t WorkspaceBytes(const OpDef& def, const OpCall& call, const Target& target, Parts parts);

// One function a family file; called by OpTable's constructor in op.cc.
void AddLeafOps(OpTable& table);             // input param read store output constant iota
void AddElementwiseOps(OpTable& table);      // add ... cast, activations and their gradients, select
void AddShapeOps(OpTable& table);            // reshape stop_gradient transpose slice concat ...
void AddMatmulOps(OpTable& table);           // einsum einsum_accumulate einsum_joined
void AddConvolutionOps(OpTable& table);      // convolution convolution_transposed convolution_grad_weight
void AddPoolOps(OpTable& table);             // max_pool avg_pool interpolate
void AddChannelOps(OpTable& table);          // channel_sums channel_affine batch_moments
void AddNormOps(OpTable& table);             // rms_norm add_rms_norm layer_norm ... l2_normalize
void AddAttentionOps(OpTable& table);        // attention
void AddRotaryOps(OpTable& table);           // positions rope_table rotary
void AddTokenOps(OpTable& table);            // embedding cross_entropy logsumexp dropout random
void AddExpertOps(OpTable& table);           // softmax top_k expert_matmul mul_rows
void AddDispatchOps(OpTable& table);         // dispatch_slots dispatch combine
void AddOptimizerOps(OpTable& table);        // adamw adam lion sgd moving_average lr_schedule sum_squares is_finite
void AddMatrixOptimizerOps(OpTable& table);  // newton_schulz square_sums adafactor_squares adafactor
void AddCollectiveOps(OpTable& table);  // all_gather reduce_scatter all_reduce all_to_all shard_slice ... send recv

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_OP_H_
