#include "graph/passes/partition/order_sequence.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/input_axes.h"

namespace tacc::graph {
namespace {

// Which elements a dim's indices name.
enum class Order {
  kAny,       // all are alike (constants)
  kNatural,   // a dim that keeps its order
  kWhole,     // the sequence, in natural order
  kMixed,     // the sequence, in the order that the pass gives it, merged with other dims
  kSequence,  // the sequence, in the order that the pass gives it
};

// Where nodes see the sequence.
bool IsOrdered(Order order) { return order == Order::kMixed || order == Order::kSequence; }

std::string Place(const Node& node) {
  return absl::StrCat(node.op.name(), " at ", node.module.empty() ? "the top level" : node.module);
}

// What is computed of inputs that are numbers of tokens, and not of weights: it has no gradient.
class OfInputs {
 public:
  explicit OfInputs(const Graph& graph) : of_weights_(graph.values.size(), 0) {
    for (const Node& node : graph.nodes) {
      const bool is = IsWeighted(node);
      for (ValueId v : node.results) of_weights_[v] = is;
    }
  }
  bool IsWeighted(const Node& node) const {
    if (node.op == Op::kParam || node.op == Op::kRead || node.op == "random") return true;
    return !std::all_of(node.operands.begin(), node.operands.end(), [this](ValueId v) { return Has(v); });
  }
  bool Has(ValueId v) const { return v >= static_cast<ValueId>(of_weights_.size()) || of_weights_[v] == 0; }

 private:
  std::vector<char> of_weights_;
};

// The inputs of whole numbers that something is computed of along the sequence before they meet weights, as labels that
// a model shifts or a mask whose running sum is a position. They stay in natural order.
absl::StatusOr<std::vector<char>> InputsToStayWhole(const Graph& graph, const OpTable& ops, const OfInputs& of_inputs) {
  std::vector<char> stays(graph.nodes.size(), 0);
  // [value][dim]: the inputs, by node, whose sequence it is.
  std::vector<std::vector<std::vector<size_t>>> origins(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    for (ValueId v : node.results) origins[v].resize(graph.type(v).dims.size());
    const OpDef* op = ops.Find(node.op);
    if (node.op == Op::kInput) {
      const std::vector<InputAxis> axes = InputAxes(graph, node);
      if (IsFloating(graph.type(node.results[0]).dtype)) continue;
      for (size_t d = 0; d < axes.size(); ++d)
        if (axes[d] == InputAxis::kSequence) origins[node.results[0]][d] = {n};
      continue;
    }
    if (op == nullptr || !op->rule || of_inputs.IsWeighted(node)) continue;
    TACC_ASSIGN_OR_RETURN(const Rule rule, op->rule(CallOf(graph, node)));
    for (size_t i = 0; i < node.operands.size(); ++i) {
      for (size_t d = 0; d < rule.in[i].size(); ++d) {
        const std::vector<size_t>& found = origins[node.operands[i]][d];
        const int f = rule.in[i][d];
        if (f == Rule::kNone && node.op != "reshape")
          for (size_t input : found) stays[input] = 1;
        if (f == Rule::kNone) continue;
        for (size_t r = 0; r < node.results.size(); ++r) {
          for (size_t e = 0; e < rule.out[r].size(); ++e) {
            std::vector<size_t>& to = origins[node.results[r]][e];
            if (rule.out[r][e] == f) to.insert(to.end(), found.begin(), found.end());
          }
        }
      }
    }
  }
  return stays;
}

// Puts the sequence of a graph into a ring's order: the nodes that depend on positions get it, what is computed in
// natural order is taken in that order where it meets the sequence, and one token is found by its position. Finds what
// stores the sequence in natural order (a gradient of a table of positions), or computes something else along it: the
// result would be wrong without a word.
class SequenceOrderer {
 public:
  SequenceOrderer(Graph& graph, const OpTable& ops, int64_t blocks)
      : graph_(graph), ops_(ops), blocks_(blocks), of_inputs_(graph), builder_(graph, ops) {}

  absl::Status Run() {
    TACC_ASSIGN_OR_RETURN(const std::vector<char> stays, InputsToStayWhole(graph_, ops_, of_inputs_));
    std::vector<Node> nodes = std::move(graph_.nodes);
    graph_.nodes.clear();
    for (size_t n = 0; n < nodes.size(); ++n) {
      Node& node = nodes[n];
      orders_.resize(graph_.values.size());
      for (ValueId v : node.results) orders_[v].assign(graph_.type(v).dims.size(), Order::kNatural);
      if (node.op == Op::kParam || node.op == Op::kRead) stored_.insert(node.results.begin(), node.results.end());
      const OpDef* op = ops_.Find(node.op);
      if (node.op == Op::kInput) {
        const std::vector<InputAxis> axes = InputAxes(graph_, node);
        for (size_t d = 0; d < axes.size(); ++d) {
          if (axes[d] != InputAxis::kSequence) continue;
          orders_[node.results[0]][d] = stays[n] ? Order::kWhole : Order::kSequence;
          if (stays[n]) node.attrs.erase("zigzag");
        }
      } else if (op != nullptr && op->rule) {
        if (TakesOneToken(node)) node = OneToken(node);
        TACC_RETURN_IF_ERROR(builder_.status());
        TACC_RETURN_IF_ERROR(Follow(node, *ops_.Find(node.op)));
      }
      graph_.nodes.push_back(std::move(node));
    }
    return builder_.status();
  }

 private:
  absl::Status Follow(Node& node, const OpDef& op) {
    TACC_ASSIGN_OR_RETURN(const Rule rule, op.rule(CallOf(graph_, node)));
    TACC_RETURN_IF_ERROR(PutInOrder(node, rule));
    std::vector<Order> factors(rule.factors.size(), Order::kAny);
    std::vector<char> in_operands(rule.factors.size(), 0);
    bool merges_sequence = false;
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const std::vector<Order>& orders = orders_[node.operands[i]];
      for (size_t d = 0; d < orders.size(); ++d) {
        const int f = rule.in[i][d];
        // Not split: the result depends on the order along the dim, but where dims are merged.
        if (f == Rule::kNone && orders[d] == Order::kSequence && node.op != "reshape") {
          return absl::InvalidArgumentError(
              absl::StrCat(Place(node), ": dim ", d, " of %", graph_.values[node.operands[i]].name,
                           " is the sequence, which context parallelism holds in another order"));
        }
        merges_sequence |=
            node.op == "reshape" && IsOrdered(orders[d]) && (f == Rule::kNone || orders[d] == Order::kMixed);
        if (f == Rule::kNone || orders[d] == Order::kAny) continue;
        in_operands[f] = 1;
        if (factors[f] != Order::kAny && (factors[f] == Order::kSequence) != (orders[d] == Order::kSequence)) {
          return absl::InvalidArgumentError(
              absl::StrCat(Place(node), ": dim ", d, " of %", graph_.values[node.operands[i]].name,
                           " meets the sequence, but context parallelism holds the sequence in another order than it; "
                           "make what depends on positions from the op `positions`"));
        }
        if (factors[f] == Order::kAny || orders[d] == Order::kMixed) factors[f] = orders[d];
      }
    }
    for (size_t r = 0; r < node.results.size(); ++r) {
      for (size_t d = 0; d < rule.out[r].size(); ++d) {
        const int f = rule.out[r][d];
        Order& order = orders_[node.results[r]][d];
        if (f == Rule::kNone) {
          order = merges_sequence ? Order::kMixed : AlongWhole(node, rule, d) ? Order::kWhole : Order::kNatural;
          continue;
        }
        // Made here: by a positional op in the sequence's order, by iota in its own, by others all alike.
        const bool is_random = node.op == "random";
        const bool is_natural = node.op == "iota" || (is_random && (d != 1 || !GetAttr<bool>(node.attrs, "sequence")));
        order = in_operands[f]  ? factors[f]
                : is_natural    ? Order::kNatural
                : op.positional ? Order::kSequence
                                : Order::kAny;
        if (merges_sequence && order != Order::kSequence) order = Order::kMixed;
      }
    }
    return absl::OkStatus();
  }

  // Whether a node works along the sequence in natural order, and dim `d` of its results is that.
  bool AlongWhole(const Node& node, const Rule& rule, size_t d) const {
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const std::vector<Order>& orders = orders_[node.operands[i]];
      if (d < orders.size() && orders[d] == Order::kWhole && rule.in[i][d] == Rule::kNone) return true;
    }
    return false;
  }

  // Whether it is a weight or a state, whose update has its order.
  bool IsStored(ValueId v) const { return stored_.count(v) > 0; }

  // Whether a node cuts one token out of the sequence.
  bool TakesOneToken(const Node& node) const {
    if (node.op != "slice") return false;
    const auto dim = static_cast<size_t>(GetAttr<int64_t>(node.attrs, "dim"));
    return GetAttr<int64_t>(node.attrs, "limit") - GetAttr<int64_t>(node.attrs, "start") == 1 &&
           orders_[node.operands[0]][dim] == Order::kSequence;
  }

  // The token at the position that `slice` names: a sum over the sequence, of which all others are 0. Costs a pass over
  // a rank's own tokens, and a sum over the ring of one token.
  Node OneToken(const Node& slice) {
    const ValueId x = slice.operands[0];
    const TensorType type = graph_.type(x);  // a copy: the builder adds values
    const int64_t dim = GetAttr<int64_t>(slice.attrs, "dim"), length = type.dims[dim];
    const int64_t start = GetAttr<int64_t>(slice.attrs, "start");
    builder_.SetModule(slice.module);
    builder_.SetRecompute(slice.recompute);
    const ValueId positions = builder_.Add("positions", {}, {{"length", length}, {"zigzag", blocks_}});
    const ValueId wanted = builder_.Constant(static_cast<double>(start), {DType::kI32, {length}});
    const ValueId is_it =
        builder_.Add("broadcast", {builder_.Add("compare", {positions, wanted}, {{"comparison", std::string("eq")}})},
                     {{"shape", type.dims}, {"dims", std::vector<int64_t>{dim}}});
    const ValueId own = builder_.Add("select", {is_it, x, builder_.Constant(0, type)});
    const ValueId sum = builder_.Add("reduce_sum", {own}, {{"dims", std::vector<int64_t>{dim}}});
    if (sum == kNoValue) return slice;
    orders_.resize(graph_.values.size());
    orders_[sum] = orders_[x];
    orders_[sum].erase(orders_[sum].begin() + dim);
    Node reshape = slice;
    reshape.op = "reshape";
    reshape.operands = {sum};
    reshape.attrs = {{"shape", graph_.type(slice.results[0]).dims}};
    return reshape;
  }

  // Of the operands those whose natural order meets the sequence's, or whose sequence meets weights.
  absl::Status PutInOrder(Node& node, const Rule& rule) {
    std::vector<char> is_sequence(rule.factors.size(), 0);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const std::vector<Order>& orders = orders_[node.operands[i]];
      for (size_t d = 0; d < orders.size(); ++d)
        if (rule.in[i][d] != Rule::kNone && orders[d] == Order::kSequence) is_sequence[rule.in[i][d]] = 1;
    }
    const bool is_weighted = of_inputs_.IsWeighted(node);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      if (IsStored(node.operands[i])) continue;
      for (size_t d = 0; d < orders_[node.operands[i]].size(); ++d) {
        const ValueId operand = node.operands[i];
        const Order order = orders_[operand][d];
        const int f = rule.in[i][d];
        if (f == Rule::kNone) continue;
        const bool meets_sequence = is_sequence[f] && (order == Order::kNatural || order == Order::kWhole);
        if (!meets_sequence && !(is_weighted && order == Order::kWhole)) continue;
        if (graph_.type(operand).dims[d] % (2 * blocks_) != 0) continue;
        node.operands[i] = InOrder(node, operand, static_cast<int64_t>(d));
      }
    }
    return builder_.status();
  }

  // The value with dim `d` in the sequence's order.
  ValueId InOrder(const Node& node, ValueId value, int64_t d) {
    const auto [found, is_new] = in_order_.try_emplace({value, d, node.module, node.recompute}, kNoValue);
    if (!is_new) return found->second;
    const TensorType type = graph_.type(value);  // a copy: the builder adds values
    builder_.SetModule(node.module);
    builder_.SetRecompute(node.recompute);
    const ValueId positions = builder_.Add("positions", {}, {{"length", type.dims[d]}, {"zigzag", blocks_}});
    const ValueId ids = builder_.Add("broadcast", {builder_.Cast(positions, DType::kI64)},
                                     {{"shape", type.dims}, {"dims", std::vector<int64_t>{d}}});
    const ValueId ordered = builder_.Add("gather", {value, ids}, {{"dim", d}});
    if (ordered == kNoValue) return value;
    orders_.resize(graph_.values.size());
    orders_[ordered] = orders_[value];
    orders_[ordered][d] = Order::kSequence;
    return found->second = ordered;
  }

  Graph& graph_;
  const OpTable& ops_;
  const int64_t blocks_;
  const OfInputs of_inputs_;
  Builder builder_;
  std::vector<std::vector<Order>> orders_;  // [value][dim]
  std::set<ValueId> stored_;
  std::map<std::tuple<ValueId, int64_t, std::string, int>, ValueId> in_order_;
};

absl::Status CheckLength(int64_t length, int64_t blocks) {
  const int64_t unit = 2 * blocks;
  if (blocks == 1 || length % unit == 0) return absl::OkStatus();
  const int64_t below = length / unit * unit;
  return absl::InvalidArgumentError(absl::StrCat(
      "data.seq_len = ", length, " cannot be cut into ", unit, " equal chunks, two for each of ", blocks,
      " workers of context parallelism; nearest legal values: ", below > 0 ? absl::StrCat(below, " and ") : "",
      below + unit));
}

}  // namespace

absl::StatusOr<bool> OrderSequence(Program& program, const OpTable& ops, int64_t blocks) {
  bool changed = false;
  for (Graph& graph : program.graphs) {
    for (Node& node : graph.nodes) {
      const OpDef* op = ops.Find(node.op);
      if (op == nullptr || !op->positional) continue;
      if (node.op == Op::kInput) {
        const std::vector<InputAxis> axes = InputAxes(graph, node);
        const auto sequence = std::find(axes.begin(), axes.end(), InputAxis::kSequence);
        if (sequence == axes.end()) continue;
        TACC_RETURN_IF_ERROR(CheckLength(graph.type(node.results[0]).dims[sequence - axes.begin()], blocks));
      }
      if (node.op == "random" && !GetAttr<bool>(node.attrs, "sequence")) continue;
      node.attrs["zigzag"] = blocks;
      changed = true;
    }
    if (blocks > 1) TACC_RETURN_IF_ERROR(SequenceOrderer(graph, ops, blocks).Run());
  }
  return changed;
}

}  // namespace tacc::graph
