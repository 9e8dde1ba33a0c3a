#include "graph/planner/compose.h"

#include <map>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/units.h"

namespace tacc::graph {
namespace {

absl::Status NotAChain(absl::string_view unit, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(unit, " ", why));
}

int64_t MemoryUse::*const kParts[] = {&MemoryUse::weights_bytes,     &MemoryUse::copies_bytes,
                                      &MemoryUse::optimizer_bytes,   &MemoryUse::gradients_bytes,
                                      &MemoryUse::temporaries_bytes, &MemoryUse::arena_bytes};

}  // namespace

absl::StatusOr<Graph> KeepLayers(const Graph& forward, const std::vector<std::string>& units, size_t keep) {
  if (keep == 0 || keep > units.size()) return NotAChain("the model", absl::StrCat("has no ", keep, " layers"));
  Units of(units);
  std::vector<std::vector<const Node*>> layers(units.size());
  std::vector<int> layer_of(forward.values.size(), -1);  // that makes the value
  for (const Node& node : forward.nodes) {
    const int layer = of.Of(node.module);
    if (layer < 0) continue;
    layers[layer].push_back(&node);
    for (ValueId v : node.results) layer_of[v] = layer;
  }
  // What the last layer made, by place, is made by the last one kept.
  const std::vector<const Node*>& last = layers.back();
  const std::vector<const Node*>& kept = layers[keep - 1];
  for (size_t u = 0; u < units.size(); ++u) {
    if (layers[u].size() != kept.size()) return NotAChain(units[u], "has another number of nodes");
    for (size_t i = 0; i < kept.size(); ++i) {
      if (layers[u][i]->op != kept[i]->op || layers[u][i]->results.size() != kept[i]->results.size()) {
        return NotAChain(units[u], "is not like the others");
      }
      for (size_t r = 0; r < kept[i]->results.size(); ++r) {
        if (forward.type(layers[u][i]->results[r]) != forward.type(kept[i]->results[r])) {
          return NotAChain(units[u], "has other types");
        }
      }
      for (ValueId v : layers[u][i]->operands) {
        if (layer_of[v] >= 0 && layer_of[v] != static_cast<int>(u) && layer_of[v] + 1 != static_cast<int>(u)) {
          return NotAChain(units[u], "reads from a layer before the last");
        }
      }
    }
  }
  std::map<ValueId, ValueId> replaced;
  for (size_t i = 0; i < last.size(); ++i) {
    for (size_t r = 0; r < last[i]->results.size(); ++r) replaced[last[i]->results[r]] = kept[i]->results[r];
  }
  Graph graph = forward;
  graph.nodes.clear();
  for (const Node& node : forward.nodes) {
    const int layer = of.Of(node.module);
    if (layer >= static_cast<int>(keep)) continue;
    graph.nodes.push_back(node);
    if (layer >= 0) continue;
    for (ValueId& v : graph.nodes.back().operands) {
      if (layer_of[v] < 0) continue;
      if (layer_of[v] + 1 != static_cast<int>(units.size())) {
        return NotAChain(node.module, "reads from a layer in the middle");
      }
      v = replaced[v];
    }
  }
  graph.CompactValues();
  return graph;
}

absl::StatusOr<MemoryUse> ComposeMemory(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                        const OpTable& ops) {
  PipelineObserver observer;
  observer.verification = PipelineObserver::Verification::kInput;
  MemoryUse of_layers[2];
  for (size_t keep : {2, 3}) {
    ForwardModel part;
    absl::StatusOr<Graph> cut = model.units.size() > 3 ? KeepLayers(model.forward, model.units, keep)
                                                       : absl::FailedPreconditionError("few layers");
    if (!cut.ok()) {
      TACC_ASSIGN_OR_RETURN(const Compiled whole, CompilePlan(request, plan, model, ops, observer));
      return Largest(whole.memory);
    }
    part.forward = *std::move(cut);
    part.residual_module = model.residual_module;
    part.units.assign(model.units.begin(), model.units.begin() + static_cast<int64_t>(keep));
    TACC_ASSIGN_OR_RETURN(const Compiled compiled, CompilePlan(request, plan, part, ops, observer));
    of_layers[keep - 2] = Largest(compiled.memory);
  }
  MemoryUse whole = of_layers[1];
  const int64_t more = static_cast<int64_t>(model.units.size()) - 3;
  for (int64_t MemoryUse::*part : kParts) whole.*part += more * (of_layers[1].*part - of_layers[0].*part);
  return whole;
}

}  // namespace tacc::graph
