// Where a graph may be cut into stages, and which of its nodes need no home.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/passes/modules/module_paths.h"
#include "graph/passes/stages/stages.h"
#include "text/nearest_name.h"

namespace tacc::graph {
namespace {

// Starts of parts such that the largest sum of `costs` between starts is least.
std::vector<int> Balance(const std::vector<double>& costs, int num_parts) {
  const int n = static_cast<int>(costs.size());
  std::vector<double> sums(n + 1, 0);
  for (int i = 0; i < n; ++i) sums[i + 1] = sums[i] + costs[i];
  constexpr double kNever = std::numeric_limits<double>::infinity();
  // best[p][i]: the first i segments in p parts.
  std::vector<std::vector<double>> best(num_parts + 1, std::vector<double>(n + 1, kNever));
  std::vector<std::vector<int>> from(num_parts + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  for (int p = 1; p <= num_parts; ++p) {
    for (int i = p; i <= n; ++i) {
      for (int j = p - 1; j < i; ++j) {
        const double largest = std::max(best[p - 1][j], sums[i] - sums[j]);
        if (largest >= best[p][i]) continue;
        best[p][i] = largest;
        from[p][i] = j;
      }
    }
  }
  std::vector<int> starts(num_parts);
  for (int p = num_parts, i = n; p > 0; --p) starts[p - 1] = i = from[p][i];
  return starts;
}

}  // namespace

std::vector<char> DerivedNodes(const Graph& graph, const Program& program, const OpTable& ops) {
  const StateIndex states(program);
  std::vector<char> derived(graph.nodes.size(), 0);
  std::vector<char> value_derived(graph.values.size(), 0);
  std::vector<char> from_state(graph.values.size(), 0);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& node = graph.nodes[i];
    const OpDef& def = *ops.Find(node.op);
    if (def.has_side_effect) continue;
    bool yes = true, of_state = false;
    for (ValueId v : node.operands) {
      yes = yes && value_derived[v];
      of_state = of_state || from_state[v];
    }
    if (node.op == Op::kRead) {
      const State* state = states.Find(node.symbol);
      of_state = true;
      yes = state != nullptr && (state->kind == StateKind::kWeight || state->kind == StateKind::kCopy ||
                                 state->kind == StateKind::kAverage);
    } else if (yes && of_state) {
      const OpCall call = CallOf(graph, node);
      const std::vector<int> aliases = def.aliases ? def.aliases(call) : std::vector<int>();
      yes = def.is_collective || node.op == Op::kShardSlice || node.op == Op::kMaskPadding || node.op == "cast" ||
            node.op == "slice" || node.op == "transpose" || (!aliases.empty() && aliases[0] >= 0);
    } else if (yes) {
      yes = !def.is_matmul;
    }
    if (!yes) continue;
    derived[i] = 1;
    for (ValueId v : node.results) {
      value_derived[v] = 1;
      from_state[v] = of_state ? 1 : 0;
    }
  }
  return derived;
}

absl::StatusOr<std::vector<int>> CutPoints(const Graph& graph, int num_forward_nodes, const OpTable& ops,
                                           const StageOptions& options, int num_parts) {
  const auto begin_of = [&](const std::string& path) {
    for (int i = 0; i < num_forward_nodes; ++i) {
      if (IsInside(graph.nodes[i].module, path)) return i;
    }
    return -1;
  };
  std::vector<int> cuts = {0};
  if (!options.split_points.empty()) {
    if (static_cast<int>(options.split_points.size()) != num_parts - 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          "dist.pp.split_points names ", options.split_points.size(), " modules, but ", num_parts, " parts (",
          num_parts / options.num_chunks, " stages x ", options.num_chunks, " chunks) need ", num_parts - 1));
    }
    for (const std::string& path : options.split_points) {
      const int begin = begin_of(path);
      if (begin < 0) {
        const std::string nearest = NearestName(path, ModulePaths(graph, num_forward_nodes));
        return absl::InvalidArgumentError(
            absl::StrCat("dist.pp.split_points: the model has no module '", path, "'",
                         nearest.empty() ? "" : absl::StrCat("; the nearest is '", nearest, "'")));
      }
      if (begin <= cuts.back()) {
        return absl::InvalidArgumentError(
            absl::StrCat("dist.pp.split_points: '", path, "' does not come after ",
                         cuts.size() == 1 ? "the start of the model" : "the split point before it",
                         "; name them in the order in which the model runs"));
      }
      cuts.push_back(begin);
    }
    return cuts;
  }
  std::vector<int> starts = {0};
  for (size_t i = 1; i < options.units.size(); ++i) {
    const int begin = begin_of(options.units[i]);
    if (begin > starts.back()) starts.push_back(begin);
  }
  if (static_cast<int>(starts.size()) < num_parts) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dist.pp.size = ", num_parts / options.num_chunks,
        options.num_chunks > 1 ? absl::StrCat(" with ", options.num_chunks, " chunks a worker") : "", " needs ",
        num_parts, " parts, but the model has ", starts.size(), " layers to cut between; use at most ",
        starts.size() / options.num_chunks, ", or name dist.pp.split_points"));
  }
  std::vector<double> costs(starts.size(), 0);
  size_t segment = 0;
  for (int i = 0; i < num_forward_nodes; ++i) {
    while (segment + 1 < starts.size() && i >= starts[segment + 1]) ++segment;
    const Node& node = graph.nodes[i];
    const OpDef& def = *ops.Find(node.op);
    if (def.flops) costs[segment] += def.flops(CallOf(graph, node));
  }
  for (int part : Balance(costs, num_parts)) {
    if (part > 0) cuts.push_back(starts[part]);
  }
  return cuts;
}

}  // namespace tacc::graph
