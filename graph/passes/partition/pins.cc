#include "graph/passes/partition/pins.h"

#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "graph/ir/axis.h"
#include "graph/ir/divisors.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/modules/module_paths.h"
#include "graph/passes/partition/axis_list.h"
#include "graph/passes/training/remat.h"
#include "text/nearest_name.h"

namespace tacc::graph {
namespace {

// The axes of a job that split tensors.
std::string PinnableAxes() {
  std::vector<absl::string_view> names;
  for (Axis axis : kJobAxes) {
    if (!FactsOf(axis).splits_layers) names.push_back(Name(axis));
  }
  return absl::StrJoin(names, ", ");
}

absl::Status Error(const std::string& pattern, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("dist.pins: \"", pattern, "\": ", what));
}

bool Matches(absl::string_view pattern, absl::string_view name) {
  const size_t star = pattern.find('*');
  if (star == absl::string_view::npos) return pattern == name;
  if (name.substr(0, star) != pattern.substr(0, star)) return false;
  for (size_t end = star; end <= name.size(); ++end) {
    if (Matches(pattern.substr(star + 1), name.substr(end))) return true;
    if (end < name.size() && name[end] == '.') return false;
  }
  return false;
}

bool MatchesParameter(const std::string& pattern, const std::string& name) {
  return Matches(pattern, name) || Matches(pattern, name.substr(0, name.find('[')));
}

// Axes of each dim.
using PinnedAxes = std::vector<std::vector<Axis>>;

absl::StatusOr<PinnedAxes> Parse(const std::string& pattern, const std::string& text) {
  absl::string_view inside = absl::StripAsciiWhitespace(text);
  if (!absl::ConsumePrefix(&inside, "[") || !absl::ConsumeSuffix(&inside, "]")) {
    return Error(pattern, absl::StrCat("'", text,
                                       "' is no sharding; give its dims in brackets, each - or axes joined by +, as "
                                       "[tp, -] or [dp+fsdp, -, tp]"));
  }
  PinnedAxes axes;
  std::set<Axis> seen;
  for (const absl::string_view dim : absl::StrSplit(inside, ',')) {
    axes.emplace_back();
    if (absl::StripAsciiWhitespace(dim) == "-") continue;
    for (const absl::string_view word : absl::StrSplit(dim, '+')) {
      const absl::string_view name = absl::StripAsciiWhitespace(word);
      const AxisFacts* facts = FindAxis(name);
      if (facts == nullptr || facts->job_axis != facts->axis || facts->splits_layers) {
        return Error(pattern, absl::StrCat("'", name, "' is no axis that splits tensors; there are ", PinnableAxes(),
                                           ", and - for none"));
      }
      if (!seen.insert(facts->axis).second) return Error(pattern, absl::StrCat(name, " is given twice"));
      axes.back().push_back(facts->axis);
    }
  }
  return axes;
}

// What a job's axes are on the mesh; those of size 1 split nothing.
AxisList OnMesh(const Mesh& mesh, const std::vector<Axis>& job_axes) {
  AxisList axes;
  for (Axis job_axis : job_axes) {
    for (const AxisFacts& facts : kAxes) {
      if (facts.job_axis != job_axis) continue;
      if (const int axis = mesh.Find(facts.name); axis >= 0 && mesh.axes[axis].size > 1) axes.push_back(axis);
    }
  }
  return axes;
}

// The values that leave one of the modules `paths`, the innermost that they leave, for another in `among`, the nodes of
// the forward, of the same repetition.
std::map<ValueId, std::string> Results(const Graph& graph, const std::vector<char>& among,
                                       const std::set<std::string>& paths) {
  const std::vector<int> producers = graph.Producers();
  std::map<ValueId, std::string> results;
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    const Node& user = graph.nodes[i];
    if (!among[i]) continue;
    for (ValueId v : user.operands) {
      if (producers[v] < 0 || !among[producers[v]] || results.count(v) > 0) continue;
      const Node& maker = graph.nodes[producers[v]];
      if (maker.operands.empty() || maker.recompute != user.recompute) continue;
      for (std::string path = maker.module; !path.empty() && !IsInside(user.module, path);) {
        if (paths.count(path) > 0) {
          results[v] = path;
          break;
        }
        const size_t dot = path.rfind('.');
        path.resize(dot == std::string::npos ? 0 : dot);
      }
    }
  }
  return results;
}

class PinResolver {
 public:
  PinResolver(const Graph& forward, PartitionOptions& options) : forward_(forward), options_(options) {}

  absl::Status Run(const Pins& pins) {
    const int num_nodes = static_cast<int>(forward_.nodes.size());
    const std::vector<std::string> paths = ModulePaths(forward_, num_nodes);
    for (const auto& [pattern, text] : pins) {
      TACC_ASSIGN_OR_RETURN(const PinnedAxes pinned, Parse(pattern, text));
      bool matched = false;
      for (const Node& node : forward_.nodes) {
        if (node.op != Op::kParam || !MatchesParameter(pattern, node.symbol)) continue;
        matched = true;
        TACC_RETURN_IF_ERROR(PinParameter(pattern, pinned, node));
      }
      for (const std::string& path : paths) {
        if (!Matches(pattern, path)) continue;
        matched = true;
        TACC_RETURN_IF_ERROR(PinModule(pattern, pinned, path));
      }
      if (!matched) return NothingMatches(pattern, paths);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status NothingMatches(const std::string& pattern, std::vector<std::string> names) const {
    for (const Node& node : forward_.nodes) {
      if (node.op == Op::kParam) names.push_back(node.symbol);
    }
    return Error(pattern, absl::StrCat("no parameter and no module of the model has such a name; the nearest is \"",
                                       NearestName(pattern, names), "\""));
  }

  absl::Status PinParameter(const std::string& pattern, const PinnedAxes& pinned, const Node& param) {
    const Dims& dims = forward_.type(param.results[0]).dims;
    const auto dim_names = GetAttr<std::vector<std::string>>(param.attrs, "axes");
    const auto dim_name = [&](size_t d) { return d < dim_names.size() ? dim_names[d] : std::string(); };
    if (pinned.size() != dims.size()) {
      const std::string list = absl::StrJoin(dims, " x ");
      return Error(pattern, absl::StrCat("it has ", pinned.size(), " dims, but ", param.symbol, " has ", dims.size(),
                                         ": ", list, dim_names.empty() ? "" : " (", absl::StrJoin(dim_names, ", "),
                                         dim_names.empty() ? "" : ")"));
    }
    Sharding sharding;
    for (size_t d = 0; d < dims.size(); ++d) {
      for (Axis axis : pinned[d]) {
        const AxisFacts& facts = FactsOf(axis);
        if (facts.splits_heads || (facts.splits_experts && dim_name(d) == "experts")) continue;
        return Error(
            pattern,
            absl::StrCat(facts.name, " may not split ", param.symbol,
                         " in use: its workers have samples or tokens of their own and need all of it; tp may",
                         facts.splits_experts ? " (and ep the experts)" : "",
                         facts.splits_states ? absl::StrCat(" (at rest ", facts.name, " splits all parameters)") : ""));
      }
      sharding.dims.push_back(OnMesh(options_.mesh, pinned[d]));
      const bool may_pad = dim_name(d) == "vocab" || dim_name(d) == "mlp";
      if (!may_pad) TACC_RETURN_IF_ERROR(CheckDivides(pattern, param.symbol, d, dims[d], sharding.dims[d]));
    }
    TACC_RETURN_IF_ERROR(Agree(pattern, param.results[0], param.symbol, sharding.dims));
    options_.pinned_weights[param.symbol] = std::move(sharding);
    return absl::OkStatus();
  }

  absl::Status PinModule(const std::string& pattern, const PinnedAxes& pinned, const std::string& path) {
    std::vector<AxisList> axes;
    for (size_t d = 0; d < pinned.size(); ++d) {
      for (Axis axis : pinned[d]) {
        if (FactsOf(axis).splits_samples == (d == 0)) continue;
        return Error(pattern, absl::StrCat(Name(axis), " may not split dim ", d, " of a result of ", path, "; dim 0 ",
                                           "may be split over dp, fsdp and ep, the others over cp and tp"));
      }
      axes.push_back(OnMesh(options_.mesh, pinned[d]));
    }
    const std::vector<char> all(forward_.nodes.size(), 1);
    bool found = false;
    std::set<size_t> other_ranks;
    for (const auto& [v, module] : Results(forward_, all, {path})) {
      const Dims& dims = forward_.type(v).dims;
      if (dims.size() != pinned.size()) {
        other_ranks.insert(dims.size());
        continue;
      }
      found = true;
      // The batch divides over what splits it: it is made of as many samples.
      for (size_t d = 1; d < dims.size(); ++d)
        TACC_RETURN_IF_ERROR(CheckDivides(pattern, absl::StrCat("a result of ", path), d, dims[d], axes[d]));
      TACC_RETURN_IF_ERROR(Agree(pattern, v, absl::StrCat("a result of ", path), axes));
    }
    if (!found) {
      return Error(pattern, absl::StrCat("it has ", pinned.size(), " dims, but ",
                                         other_ranks.empty() ? absl::StrCat("no later module reads a result of ", path)
                                                             : absl::StrCat("results of ", path, " have ",
                                                                            absl::StrJoin(other_ranks, " or "))));
    }
    if (options_.residual.has_value() && options_.residual->module == path) options_.residual->dims = axes;
    options_.pinned_results[path] = std::move(axes);
    return absl::OkStatus();
  }

  absl::Status CheckDivides(const std::string& pattern, const std::string& what, size_t dim, int64_t extent,
                            const AxisList& axes) const {
    if (!IsPadded(extent, axes, options_.mesh)) return absl::OkStatus();
    return Error(pattern, absl::StrCat("dim ", dim, " of ", what, ", ", extent, ", cannot be split into ",
                                       NumShards(options_.mesh, axes), "; it can be split into ",
                                       absl::StrJoin(Divisors(extent), ", ")));
  }

  // One tensor, one sharding.
  absl::Status Agree(const std::string& pattern, ValueId v, const std::string& what,
                     const std::vector<AxisList>& axes) {
    const auto [it, inserted] = pinned_.try_emplace(v, pattern, axes);
    if (inserted || it->second.second == axes) return absl::OkStatus();
    const auto text = [&](const std::vector<AxisList>& dims) { return Sharding{dims, {}}.ToString(options_.mesh); };
    return absl::InvalidArgumentError(absl::StrCat(
        "dist.pins: \"", it->second.first, "\" and \"", pattern, "\" contradict each other: ", what, " is ",
        text(it->second.second), " by the one and ", text(axes), " by the other; narrow one of them"));
  }

  const Graph& forward_;
  PartitionOptions& options_;
  std::map<ValueId, std::pair<std::string, std::vector<AxisList>>> pinned_;  // pattern, axes of each dim
};

}  // namespace

absl::Status ApplyPins(const Pins& pins, const Graph& forward, PartitionOptions& options) {
  return pins.empty() ? absl::OkStatus() : PinResolver(forward, options).Run(pins);
}

std::map<ValueId, std::vector<AxisList>> PinnedValues(const Program& program, const Graph& graph,
                                                      const std::map<std::string, std::vector<AxisList>>& pinned) {
  std::map<ValueId, std::vector<AxisList>> values;
  if (pinned.empty() || graph.name == kUpdateGraph) return values;
  std::vector<char> among = ForwardNodes(program, graph);
  // Without a backward all is forward; what is computed again for the backward lies as it did before.
  const bool is_eval = graph.Output("loss") != kNoValue;
  for (size_t i = 0; i < among.size(); ++i) among[i] |= is_eval || graph.nodes[i].recompute > 0;
  std::set<std::string> paths;
  for (const auto& [path, dims] : pinned) paths.insert(path);
  for (const auto& [v, path] : Results(graph, among, paths)) {
    const std::vector<AxisList>& dims = pinned.at(path);
    if (dims.size() == static_cast<size_t>(graph.type(v).rank())) values[v] = dims;
  }
  return values;
}

}  // namespace tacc::graph
