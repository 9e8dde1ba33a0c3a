#include "graph/verify/verify.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "graph/ir/status_macros.h"
#include "graph/verify/checks.h"

namespace tacc::graph {
namespace {

absl::Status CheckState(const State& state, const Program& program, const StateIndex& states) {
  const std::string what = absl::StrCat("state \"", state.name, "\"");
  const std::vector<absl::string_view> prefixes = StateNamePrefixes(state.kind);
  if (std::none_of(prefixes.begin(), prefixes.end(),
                   [&](absl::string_view prefix) { return absl::StartsWith(state.name, prefix); })) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": kind=", Name(state.kind), "; the name must begin with ", prefixes[0]));
  }
  if (state.slots < 1 || (state.slots > 1 && state.kind != StateKind::kStash)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": slots=", state.slots, "; a stash has one or more, any other state one"));
  }
  if (!state.stored_dims.empty()) {
    const TensorType stored{state.type.dtype, state.stored_dims};
    if (stored.num_elements() != state.placement.global.num_elements()) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": stored=", DimsToString(state.stored_dims),
                                                     " has not the number of elements of ",
                                                     state.placement.global.ToString()));
    }
  }
  if (const Dims& from = state.merged_from; !from.empty()) {
    const Dims& dims = state.placement.global.dims;
    const size_t kept = dims.empty() ? 0 : dims.size() - 1;
    // What is left of the first dim over those that it is made of.
    bool is_merged = !dims.empty() && from.size() > dims.size();
    int64_t left = dims.empty() ? 0 : dims[0];
    for (size_t d = 0; is_merged && d + kept < from.size(); ++d) {
      is_merged = from[d] > 0 && left % from[d] == 0;
      if (is_merged) left /= from[d];
    }
    const bool is_cut = state.kind != StateKind::kCounter && state.kind != StateKind::kLossScale &&
                        state.kind != StateKind::kStash && program.level != Level::kLogical;
    if (!is_cut || !is_merged || left != 1 ||
        !std::equal(dims.begin() + 1, dims.end(), from.end() - static_cast<int64_t>(kept))) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": ", state.placement.global.ToString(),
                                                     " is not merged_from=", DimsToString(from),
                                                     " with its leading dims as one, of a state that a layout cuts"));
    }
  }
  if (!state.axes.empty() && static_cast<int>(state.axes.size()) != state.placement.global.rank()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": axes= has ", state.axes.size(), " names for the ",
                                                   state.placement.global.rank(), " dims of ",
                                                   state.placement.global.ToString()));
  }
  if (const std::string weight = WeightState(ParameterOf(state));
      state.kind == StateKind::kCopy && states.Find(weight) == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is a copy, but there is no \"", weight, "\""));
  }
  if (state.role != WeightRole::kTrained && state.kind != StateKind::kWeight)
    return absl::InvalidArgumentError(absl::StrCat(what, " is ", Name(state.role), "; only weights may be"));
  if (state.kind == StateKind::kGradient || state.kind == StateKind::kOptimizer || state.kind == StateKind::kAverage) {
    const State* weight = states.Find(WeightState(ParameterOf(state)));
    if (weight != nullptr && !IsTrained(weight->role))
      return absl::InvalidArgumentError(absl::StrCat(what, " is of a frozen weight"));
  }
  if (absl::Status status = CheckPlacement(state.type, state.placement, program.mesh); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", status.message()));
  }
  const bool may_be_pending =
      state.kind == StateKind::kGradient || state.kind == StateKind::kCounter || state.kind == StateKind::kStash;
  if (!state.placement.sharding.pending.empty() && !may_be_pending) {
    return absl::InvalidArgumentError(absl::StrCat(what, " is pending; only gradients, counters and stashes may be"));
  }
  return absl::OkStatus();
}

absl::Status CheckCalls(const Program& program, absl::string_view list, const std::vector<Call>& calls) {
  for (const Call& call : calls) {
    if (program.FindGraph(call.graph) == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(list, ": call of ", call.graph, ", but no graph has that name"));
    }
    if (call.micro_batch < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(list, ": call of ", call.graph, " with micro_batch=", call.micro_batch, "; wanted 0 or more"));
    }
  }
  return absl::OkStatus();
}

absl::Status InGraph(const Graph& graph, absl::Status status) {
  if (status.ok() || graph.name.empty()) return status;
  return absl::Status(status.code(), absl::StrCat("graph ", graph.name, ": ", status.message()));
}

absl::Status CheckGraph(const Graph& graph, const Program& program, const StateIndex& states, const OpTable& ops) {
  TACC_RETURN_IF_ERROR(CheckStructure(graph, ops, program.level));
  TACC_RETURN_IF_ERROR(CheckBindings(graph, program, states));
  if (program.level == Level::kLogical) return absl::OkStatus();
  return CheckPartition(graph, ops, program.mesh);
}

}  // namespace

absl::Status VerifyGraph(const Graph& graph, const OpTable& ops) { return CheckStructure(graph, ops, Level::kLogical); }

absl::Status Verify(const Program& program, const OpTable& ops) {
  if (program.num_stages < 1 || program.stage < 0 || program.stage >= program.num_stages) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage ", program.stage, " of ", program.num_stages, "; stages count from 0"));
  }
  const int axis = program.mesh.Find(kStageAxis);
  if (program.num_stages > 1 && (axis < 0 || program.mesh.axes[axis].size != program.num_stages)) {
    return absl::InvalidArgumentError(absl::StrCat("stage ", program.stage, " of ", program.num_stages,
                                                   ", but the mesh is ", program.mesh.ToString()));
  }
  const StateIndex states(program);
  for (const State& state : program.states) {
    if (states.Find(state.name) != &state) {
      return absl::InvalidArgumentError(absl::StrCat("state \"", state.name, "\" is declared twice"));
    }
  }
  for (const State& state : program.states) TACC_RETURN_IF_ERROR(CheckState(state, program, states));
  std::set<std::string> names;
  for (const Graph& graph : program.graphs) {
    if (!names.insert(graph.name).second)
      return absl::InvalidArgumentError(absl::StrCat("graph ", graph.name, " is defined twice"));
    TACC_RETURN_IF_ERROR(InGraph(graph, CheckGraph(graph, program, states, ops)));
  }
  TACC_RETURN_IF_ERROR(CheckCalls(program, "step", program.step));
  TACC_RETURN_IF_ERROR(CheckCalls(program, "eval", program.eval));
  if (program.level == Level::kPlanned) TACC_RETURN_IF_ERROR(CheckMemory(program, ops));
  return absl::OkStatus();
}

}  // namespace tacc::graph
