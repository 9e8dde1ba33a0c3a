#include "graph/passes/partition/order_sequence.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/input_axes.h"

namespace tacc::graph {
namespace {

// Which elements a dim's indices name.
enum class Order {
  kAny,       // all are alike (constants)
  kNatural,   // a dim that keeps its order
  kSequence,  // the sequence, in the order that the pass gives it
};

// Follows the sequence through a graph, and finds what mixes it with a dim that stays in natural order (a table of
// positions cut from a parameter): the result would be wrong without a word.
class SequenceCheck {
 public:
  SequenceCheck(const Graph& graph, const OpTable& ops) : graph_(graph), ops_(ops), orders_(graph.values.size()) {}

  absl::Status Run() {
    for (const Node& node : graph_.nodes) {
      for (ValueId v : node.results) orders_[v].assign(graph_.type(v).dims.size(), Order::kNatural);
      const OpDef* op = ops_.Find(node.op);
      if (node.op == Op::kInput) {
        const std::vector<InputAxis> axes = InputAxes(graph_, node);
        for (size_t d = 0; d < axes.size(); ++d) {
          if (axes[d] == InputAxis::kSequence) orders_[node.results[0]][d] = Order::kSequence;
        }
      } else if (op != nullptr && op->rule) {
        TACC_RETURN_IF_ERROR(Follow(node, *op));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Follow(const Node& node, const OpDef& op) {
    TACC_ASSIGN_OR_RETURN(const Rule rule, op.rule(CallOf(graph_, node)));
    std::vector<Order> factors(rule.factors.size(), Order::kAny);
    std::vector<char> in_operands(rule.factors.size(), 0);
    for (size_t i = 0; i < node.operands.size(); ++i) {
      const std::vector<Order>& orders = orders_[node.operands[i]];
      for (size_t d = 0; d < orders.size(); ++d) {
        const int f = rule.in[i][d];
        // Not split: the result depends on the order along the dim, but where dims are merged.
        if (f == Rule::kNone && orders[d] == Order::kSequence && node.op != "reshape") {
          return absl::InvalidArgumentError(
              absl::StrCat(node.op.name(), " at ", node.module.empty() ? "the top level" : node.module, ": dim ", d,
                           " of %", graph_.values[node.operands[i]].name,
                           " is the sequence, which context parallelism holds in another order"));
        }
        if (f == Rule::kNone || orders[d] == Order::kAny) continue;
        in_operands[f] = 1;
        if (factors[f] != Order::kAny && factors[f] != orders[d]) {
          return absl::InvalidArgumentError(
              absl::StrCat(node.op.name(), " at ", node.module.empty() ? "the top level" : node.module, ": dim ", d,
                           " of %", graph_.values[node.operands[i]].name,
                           " meets the sequence, but context parallelism holds the sequence in another order than it; "
                           "make what depends on positions from the op `positions`"));
        }
        factors[f] = orders[d];
      }
    }
    for (size_t r = 0; r < node.results.size(); ++r) {
      for (size_t d = 0; d < rule.out[r].size(); ++d) {
        const int f = rule.out[r][d];
        Order& order = orders_[node.results[r]][d];
        if (f == Rule::kNone) continue;
        // Made here: by a positional op in the sequence's order, by iota in its own, by others all alike.
        const bool is_random = node.op == "random";
        const bool is_natural = node.op == "iota" || (is_random && (d != 1 || !GetAttr<bool>(node.attrs, "sequence")));
        order = in_operands[f]  ? factors[f]
                : is_natural    ? Order::kNatural
                : op.positional ? Order::kSequence
                                : Order::kAny;
      }
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  const OpTable& ops_;
  std::vector<std::vector<Order>> orders_;  // [value][dim]
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
    if (blocks > 1) TACC_RETURN_IF_ERROR(SequenceCheck(graph, ops).Run());
  }
  return changed;
}

}  // namespace tacc::graph
