#include "graph/planner/cost/kernel_work.h"

#include <algorithm>
#include <cstddef>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tacc::graph {

Kind KindOf(const std::string& axis) {
  if (axis == "experts") return Kind::kExpert;
  if (axis == "vocab" || axis == "heads" || axis == "kv_heads" || axis == "mlp") return Kind::kTensor;
  return Kind::kPlain;
}

bool Has(const Kinds& kinds, Kind kind) { return std::find(kinds.begin(), kinds.end(), kind) != kinds.end(); }

Split RegionOf(const Kinds& factors) {
  return Has(factors, Kind::kExpert) ? Split::kExpert : Has(factors, Kind::kTensor) ? Split::kTensor : Split::kHome;
}

void ProductExtents(const Rule& rule, const std::vector<int>& of_a, const std::vector<int>& of_b, const Kinds& factors,
                    KernelWork& k) {
  for (size_t f = 0; f < factors.size(); ++f) {
    auto in = [&](const std::vector<int>& list) {
      return std::find(list.begin(), list.end(), static_cast<int>(f)) != list.end();
    };
    const bool a = in(of_a), b = in(of_b), y = in(rule.out[0]);
    Extent* extent = a && b && !y ? &k.depth : a && !b ? &k.rows : b && !a ? &k.columns : nullptr;
    if (extent == nullptr) continue;
    const double size = static_cast<double>(rule.factors[f].size);
    extent->size = extent->size == 0 ? size : extent->size * size;
    if (factors[f] == Kind::kToken) extent->split = Split::kTokens;
    if (factors[f] == Kind::kTensor) extent->split = Split::kTensor;
    if (factors[f] == Kind::kExpert) extent->split = Split::kExpert;
  }
}

void JoinedParts(const Rule& rule, const OpCall& call, KernelWork& k) {
  const std::vector<int>& x = rule.in[0];
  double sum = 0;
  for (size_t o = 1; o < call.operands.size(); ++o) sum += static_cast<double>(call.in(o).dims[0]);
  for (size_t o = 1; o < call.operands.size(); ++o) k.parts.push_back(static_cast<double>(call.in(o).dims[0]) / sum);
  k.joins_depth = std::find(x.begin(), x.end(), rule.in[1][0]) != x.end();
}

void GroupedExtents(const Node& node, const OpCall& call, const std::vector<Kinds>& kinds, KernelWork& k) {
  const auto features = [&](size_t operand, size_t dim) -> Extent {
    const bool is_tensor = kinds[node.operands[operand]][dim] == Kind::kTensor;
    return {static_cast<double>(call.in(operand).dims[dim]), is_tensor ? Split::kTensor : Split::kNone};
  };
  const bool is_gradient = node.op == "expert_matmul_grad";
  const Extent slots{static_cast<double>(call.in(is_gradient ? 2 : 1).num_elements()), Split::kTokens};
  k.region = Split::kExpert;
  k.groups = {static_cast<double>(call.attr<int64_t>("num_experts")), Split::kExpert};
  if (is_gradient) {
    k.rows = features(0, call.in(0).rank() - 1);
    k.columns = features(1, call.in(1).rank() - 1);
    k.depth = slots;
    return;
  }
  const bool is_transposed = call.attr<bool>("transposed");
  k.rows = slots;
  k.columns = features(2, is_transposed ? 2 : 1);
  k.depth = features(2, is_transposed ? 1 : 2);
}

std::string KeyOf(const UnitWork& u) {
  std::string key = absl::StrCat(u.parameters.whole, " ", u.parameters.tensor, " ", u.parameters.expert, " ",
                                 u.frozen.total(), " ", u.narrow.total(), " ", u.input_bytes, " ", u.narrowed_bytes,
                                 " ", u.saved_home_bytes, " ", u.saved_tensor_bytes);
  for (const PhaseWork* phase : {&u.forward, &u.backward}) {
    for (const auto* list : {&phase->gathers, &phase->scatters, &phase->exchanges}) {
      absl::StrAppend(&key, " | ");
      for (const TransferWork& transfer : *list) absl::StrAppend(&key, " ", transfer.bytes);
    }
    for (const KernelWork& k : phase->kernels) {
      absl::StrAppend(&key, " ", k.flops, " ", k.sample_bytes, " ", k.whole_bytes, " ", k.weight_bytes);
    }
  }
  return key;
}

void AddInstant(const Instant& instant, std::vector<Instant>& instants) {
  const auto bytes = [](const Instant& of) { return of.home_bytes + of.tensor_bytes; };
  while (!instants.empty() && bytes(instants.back()) <= bytes(instant)) instants.pop_back();
  if (instants.empty() || instants.back().gradients < instant.gradients) instants.push_back(instant);
}

std::vector<double> GradientShares(const Graph& graph, size_t first, const std::vector<int>& part,
                                   const std::map<std::string, int>& makers, const OpTable& ops) {
  std::set<int> of_gradients;
  int num_parts = 0;
  for (const auto& [parameter, maker] : makers) of_gradients.insert(maker);
  for (int p : part) num_parts = std::max(num_parts, p + 1);
  std::vector<double> gradients(num_parts, 0), all(num_parts, 0), shares(num_parts, UnitWork().gradients_share);
  for (size_t i = first; i < graph.nodes.size(); ++i) {
    const OpDef* def = ops.Find(graph.nodes[i].op);
    if (def == nullptr || !def->is_matmul || !def->flops || absl::StartsWith(graph.nodes[i].op, "attention")) continue;
    const double flops = def->flops(CallOf(graph, graph.nodes[i]));
    all[part[i]] += flops;
    if (of_gradients.count(static_cast<int>(i)) > 0) gradients[part[i]] += flops;
  }
  for (int p = 0; p < num_parts; ++p) {
    if (all[p] > 0) shares[p] = gradients[p] / all[p];
  }
  return shares;
}

}  // namespace tacc::graph
