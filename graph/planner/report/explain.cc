#include "graph/planner/report/explain.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/planner/report/explainer.h"
#include "graph/planner/report/words.h"

namespace tacc::graph {
namespace {

// A state, on all stages that have it.
std::string StateText(const Finalist& finalist, const OpTable& ops, const std::string& name) {
  std::string what, uses, copies;
  std::vector<int64_t> on;
  for (size_t s = 0; s < finalist.stages.size(); ++s) {
    const State* state = finalist.stages[s].FindState(name);
    if (state == nullptr) continue;
    const Explainer explainer(finalist, ops, static_cast<int>(s));
    if (on.empty()) what = explainer.State(*state);
    on.push_back(static_cast<int64_t>(s));
    absl::StrAppend(&uses, explainer.UsesOf(*state));
    absl::StrAppend(&copies, copies.empty() ? "" : ", ", state->slots, state->slots == 1 ? " copy" : " copies",
                    " on stage ", s);
  }
  if (finalist.stages.size() == 1) return what + uses;
  const StateKind kind = finalist.stages[on[0]].FindState(name)->kind;
  if (kind == StateKind::kStash) return absl::StrCat(what, "  of the micro-batches under way: ", copies, "\n", uses);
  absl::StrAppend(&what, "  on ", on.size() == 1 ? "stage " : "stages ", ListText(on), " of ", finalist.stages.size());
  if (on.size() > 1 && kind != StateKind::kCounter && kind != StateKind::kLossScale)
    absl::StrAppend(&what, ", which all use it: each sums its own part of the gradient, and the update sums the parts");
  return absl::StrCat(what, "\n", uses);
}

// The same, and of a weight its copy.
std::string StateAndCopyText(const Finalist& finalist, const OpTable& ops, const State& state) {
  std::string text = StateText(finalist, ops, state.name);
  if (state.kind != StateKind::kWeight) return text;
  const std::string copy = CopyState(ParameterOf(state));
  const bool has_copy = std::any_of(finalist.stages.begin(), finalist.stages.end(),
                                    [&](const Program& stage) { return stage.FindState(copy) != nullptr; });
  return has_copy ? text + StateText(finalist, ops, copy) : text;
}

// Length of the longest text that is in both.
size_t LongestCommon(const std::string& a, const std::string& b) {
  size_t longest = 0;
  std::vector<size_t> row(b.size() + 1, 0);
  for (char c : a) {
    for (size_t j = b.size(); j > 0; --j) {
      row[j] = c == b[j - 1] ? row[j - 1] + 1 : 0;
      longest = std::max(longest, row[j]);
    }
  }
  return longest;
}

}  // namespace

absl::StatusOr<std::string> Explain(const Finalist& finalist, const OpTable& ops, const std::string& name) {
  std::set<std::string> known, told;
  std::map<std::string, const State*> ending;  // weights whose names end so; the same may be on several stages
  std::string kinds, read;
  for (size_t s = 0; s < finalist.stages.size(); ++s) {
    const Explainer explainer(finalist, ops, static_cast<int>(s));
    if (const OpDef* def = ops.Find(name); def != nullptr && def->is_collective)
      absl::StrAppend(&kinds, explainer.Kind(name, told));
    for (const State& state : finalist.stages[s].states) {
      known.insert(state.name);
      if (state.name == name || WeightState(name) == state.name) return StateAndCopyText(finalist, ops, state);
      if (state.kind == StateKind::kWeight && absl::EndsWith(state.name, name)) ending.emplace(state.name, &state);
    }
    for (const Graph& graph : finalist.stages[s].graphs) {
      for (const Node& node : graph.nodes) {
        if (node.results.empty()) continue;
        known.insert(absl::StrCat("%", graph.values[node.results[0]].name));
        for (ValueId v : node.results) {
          if (graph.values[v].name != absl::StripPrefix(name, "%")) continue;
          // What another graph or stage has made is read under the same name.
          if (node.op != Op::kRead) return explainer.Value(graph, node, v);
          if (read.empty()) read = explainer.Value(graph, node, v);
        }
      }
    }
  }
  if (!kinds.empty()) return kinds;
  if (!read.empty()) return read;
  if (ending.size() == 1) return StateAndCopyText(finalist, ops, *ending.begin()->second);
  if (!ending.empty()) {
    std::vector<std::string> names;
    for (const auto& [state_name, state] : ending) names.push_back(state_name);
    names.resize(std::min(names.size(), kMaxNames));
    return absl::InvalidArgumentError(
        absl::StrCat("--explain ", name, ": ", ending.size(), " states end so: ", absl::StrJoin(names, ", "),
                     ending.size() > names.size() ? ", ..." : "", "; give more of the name"));
  }
  std::vector<std::string> nearest(known.begin(), known.end());
  std::stable_sort(nearest.begin(), nearest.end(), [&](const std::string& a, const std::string& b) {
    return LongestCommon(a, name) > LongestCommon(b, name);
  });
  nearest.resize(std::min(nearest.size(), kMaxNames));
  return absl::InvalidArgumentError(absl::StrCat(
      "--explain ", name,
      ": no state, value or kind of collective of the program is called so; nearest: ", absl::StrJoin(nearest, ", ")));
}

}  // namespace tacc::graph
