#include "graph/passes/rewrite/fuse.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ops/op.h"

namespace tacc::graph {
namespace {

std::vector<int> NumUses(const Graph& graph) {
  std::vector<int> num_uses(graph.values.size(), 0);
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.operands) ++num_uses[v];
  }
  return num_uses;
}

// Equal dims, and the same part of them on each rank.
bool LieAlike(const Graph& graph, ValueId a, ValueId b) {
  const auto &pa = graph.values[a].placement, &pb = graph.values[b].placement;
  return graph.type(a).dims == graph.type(b).dims && pa.has_value() == pb.has_value() &&
         (!pa.has_value() || pa->sharding == pb->sharding);
}

// Whether `acc` is an accumulator in its final state, of which the add is the last reader, or a product, where products
// are summed as they come and the first's memory becomes the sum's.
bool IsSum(const Graph& graph, const std::vector<int>& producers, const std::vector<int>& num_uses, ValueId acc,
           ValueId product) {
  if (producers[acc] < 0 || !(graph.values[acc].type == graph.values[product].type) ||
      graph.values[acc].placement != graph.values[product].placement) {
    return false;
  }
  const Op& op = graph.nodes[producers[acc]].op;
  const DType dtype = graph.type(acc).dtype;
  return (op == Op::kRead && dtype == AccumulationType(dtype)) ||
         ((op == "einsum" || op == "einsum_accumulate") && num_uses[acc] == 1);
}

class NormFusion {
 public:
  explicit NormFusion(Graph& graph)
      : graph_(graph), producers_(graph.Producers()), num_uses_(NumUses(graph)), last_uses_(graph.LastUses()) {
    taken_by_.resize(graph.nodes.size(), -1);
  }

  // Takes adds and casts into norms, but leaves them where they are. Gives, by node, the norm that took it, or -1.
  std::vector<int> Run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      Node& node = graph_.nodes[i];
      if (node.op == "rms_norm" || node.op == "layer_norm") TakeAddBefore(static_cast<int>(i), node);
      if (node.op == "rms_norm_grad" || node.op == "layer_norm_grad") {
        TakeCastBefore(static_cast<int>(i), node, 0);
        const DType dx = graph_.type(node.operands[1]).dtype;
        if (TakeCastBefore(static_cast<int>(i), node, 1)) node.attrs["dx"] = std::string(Name(dx));
        TakeAddAfter(static_cast<int>(i), node);
        TakeCastAfter(static_cast<int>(i), node);
      }
    }
    return std::move(taken_by_);
  }

 private:
  bool IsAdd(int index, const Node& of) const {
    if (index < 0 || taken_by_[index] >= 0) return false;
    const Node& node = graph_.nodes[index];
    return node.op == "add" && node.recompute == of.recompute;
  }

  void TakeAddBefore(int index, Node& norm) {
    const ValueId sum = norm.operands[0];
    const int producer = producers_[sum];
    if (!IsAdd(producer, norm) || !OnlyOperandsBetween(producer, index)) return;
    const Node& add = graph_.nodes[producer];
    const ValueId a = add.operands[0], b = add.operands[1];
    if (!LieAlike(graph_, a, sum) || !LieAlike(graph_, b, sum)) return;
    norm.op = Op(absl::StrCat("add_", norm.op.name()));
    norm.operands[0] = a;
    norm.operands.insert(norm.operands.begin() + 1, b);
    norm.results.push_back(sum);
    taken_by_[producer] = index;
  }

  // Whether all nodes after `first` and before `last` make operands of `last`, and not of what `first` makes.
  bool OnlyOperandsBetween(int first, int last) const {
    std::set<ValueId> needed(graph_.nodes[last].operands.begin(), graph_.nodes[last].operands.end());
    for (int i = last - 1; i > first; --i) {
      if (taken_by_[i] >= 0) continue;
      const Node& node = graph_.nodes[i];
      auto is_needed = [&](ValueId v) { return needed.count(v) > 0; };
      auto is_made_by_first = [&](ValueId v) { return producers_[v] == first; };
      if (std::none_of(node.results.begin(), node.results.end(), is_needed)) return false;
      if (std::any_of(node.operands.begin(), node.operands.end(), is_made_by_first)) return false;
      needed.insert(node.operands.begin(), node.operands.end());
    }
    return true;
  }

  // A cast that rounds nothing, of that operand. Returns whether there was one.
  bool TakeCastBefore(int index, Node& grad, int operand) {
    const ValueId wide = grad.operands[operand];
    const int producer = producers_[wide];
    if (producer < 0 || num_uses_[wide] != 1 || graph_.nodes[producer].op != "cast") return false;
    const ValueId narrow = graph_.nodes[producer].operands[0];
    if (!IsFloating(graph_.type(narrow).dtype) ||
        ByteSize(graph_.type(narrow).dtype) >= ByteSize(graph_.type(wide).dtype))
      return false;
    grad.operands[operand] = narrow;
    taken_by_[producer] = index;
    return true;
  }

  void TakeAddAfter(int index, Node& grad) {
    // Of padded rows acc would have to be masked too: an op's rule knows no operand that only some results sum.
    if (const int maker = producers_[grad.operands[0]]; maker >= 0 && graph_.nodes[maker].op == Op::kMaskPadding)
      return;
    const ValueId dx = grad.results[0];
    const int user = last_uses_[dx];
    if (num_uses_[dx] != 1 || !IsAdd(user, grad)) return;
    const Node& add = graph_.nodes[user];
    const ValueId acc = add.operands[0] == dx ? add.operands[1] : add.operands[0];
    if (producers_[acc] >= index || graph_.type(acc) != graph_.type(dx)) return;
    if (!LieAlike(graph_, acc, dx) || !LieAlike(graph_, add.results[0], dx)) return;
    grad.op = Op(absl::StrCat(grad.op.name(), "_accumulate"));
    grad.operands.insert(grad.operands.begin(), acc);
    grad.results[0] = add.results[0];
    taken_by_[user] = index;
  }

  // One that rounds, before anything else reads the gradient: so the narrow copy is not kept for long.
  void TakeCastAfter(int index, Node& grad) {
    const ValueId dx = grad.results[0];
    for (int i = index + 1; i < static_cast<int>(graph_.nodes.size()); ++i) {
      const Node& node = graph_.nodes[i];
      if (taken_by_[i] >= 0 || std::find(node.operands.begin(), node.operands.end(), dx) == node.operands.end())
        continue;
      if (node.op != "cast" || node.recompute != grad.recompute) return;
      const ValueId copy = node.results[0];
      const DType narrow = graph_.type(copy).dtype;
      if (!IsFloating(narrow) || ByteSize(narrow) >= ByteSize(graph_.type(dx).dtype)) return;
      grad.attrs["copy"] = std::string(Name(narrow));
      grad.results.push_back(copy);
      taken_by_[i] = index;
      return;
    }
  }

  Graph& graph_;
  const std::vector<int> producers_, num_uses_, last_uses_;
  std::vector<int> taken_by_;
};

}  // namespace

bool FuseAccumulation(Graph& graph, const OpTable&) {
  const std::vector<int> num_uses = NumUses(graph);
  const std::vector<int> producers = graph.Producers();
  std::vector<char> dead(graph.nodes.size(), 0);
  bool changed = false;
  for (Node& node : graph.nodes) {
    if (node.op != "add") continue;
    const bool is_bias = graph.type(node.operands[1]).rank() < graph.type(node.operands[0]).rank();
    const ValueId product = node.operands[is_bias ? 0 : 1], acc = node.operands[is_bias ? 1 : 0];
    if (num_uses[product] != 1 || producers[product] < 0) continue;
    const Node& einsum = graph.nodes[producers[product]];
    const DType dtype = graph.type(product).dtype;
    if (einsum.op != "einsum" || graph.type(acc).dtype != dtype) continue;
    const DType operand = graph.type(einsum.operands[0]).dtype;
    if (dtype != operand && dtype != AccumulationType(operand)) continue;
    if (!is_bias && !IsSum(graph, producers, num_uses, acc, product)) continue;
    node.op = "einsum_accumulate";
    node.attrs = einsum.attrs;
    node.attrs.erase("dtype");
    node.operands = {acc, einsum.operands[0], einsum.operands[1]};
    dead[producers[product]] = 1;
    changed = true;
  }
  if (changed) graph.RemoveNodes(dead);
  return changed;
}

bool FuseChannels(Graph& graph, const OpTable&) {
  const std::vector<int> num_uses = NumUses(graph), producers = graph.Producers();
  std::vector<char> dead(graph.nodes.size(), 0);
  bool changed = false;
  for (Node& node : graph.nodes) {
    if (node.op != "add") continue;
    const auto is_summand = [&](ValueId v) {
      const auto& placement = graph.values[v].placement;
      const bool is_pending = placement.has_value() && !placement->sharding.pending.empty();
      return producers[v] >= 0 && num_uses[v] == 1 && !is_pending && graph.nodes[producers[v]].op == "channel_affine" &&
             graph.nodes[producers[v]].recompute == node.recompute && graph.type(v) == graph.type(node.results[0]) &&
             LieAlike(graph, v, node.results[0]);
    };
    if (!is_summand(node.operands[0]) || !is_summand(node.operands[1])) continue;
    const Node *x = &graph.nodes[producers[node.operands[0]]], *z = &graph.nodes[producers[node.operands[1]]];
    if (x->operands.size() > z->operands.size()) std::swap(x, z);
    if (x->operands.size() > 2) continue;                                              // each adds something
    if (graph.type(x->operands[1]).dims != graph.type(z->operands[1]).dims) continue;  // one is of groups of samples
    dead[producers[node.operands[0]]] = dead[producers[node.operands[1]]] = 1;
    std::vector<ValueId> operands = x->operands;
    operands.insert(operands.end(), z->operands.begin(), z->operands.end());
    node.op = "channel_affine_pair";
    node.operands = std::move(operands);
    changed = true;
  }
  if (changed) graph.RemoveNodes(dead);
  return changed;
}

bool FuseNorms(Graph& graph, const OpTable&) {
  std::vector<char> taken;
  for (int norm : NormFusion(graph).Run()) taken.push_back(norm >= 0 ? 1 : 0);
  const bool changed = std::find(taken.begin(), taken.end(), 1) != taken.end();
  if (changed) graph.RemoveNodes(taken);
  return changed;
}

std::vector<int> NormsThatTake(Graph graph) { return NormFusion(graph).Run(); }

}  // namespace tacc::graph
