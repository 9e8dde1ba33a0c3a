#include "graph/planner/report/finalist.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/target.h"
#include "graph/planner/simulate/cluster_times.h"

namespace tacc::graph {

std::vector<const Program*> Finalist::programs() const {
  std::vector<const Program*> programs;
  for (const Program& program : stages) programs.push_back(&program);
  return programs;
}

int Finalist::slowest_stage() const {
  int slowest = 0;
  for (size_t s = 1; s < simulation.stages.size(); ++s) {
    if (simulation.stages[s].idle_seconds < simulation.stages[slowest].idle_seconds) slowest = static_cast<int>(s);
  }
  return slowest;
}

absl::StatusOr<Finalist> MakeFinalist(const PlanRequest& request, const Candidate& candidate,
                                      std::vector<Program> stages, const OpTable& ops) {
  Finalist finalist;
  finalist.candidate = candidate;
  finalist.cluster = request.cluster;
  finalist.stages = std::move(stages);
  finalist.times = TimesOn(finalist.cluster, finalist.programs(), ops);
  TACC_ASSIGN_OR_RETURN(finalist.simulation, Simulate(finalist.programs(), finalist.times));
  return finalist;
}

absl::string_view Name(Cargo cargo) {
  switch (cargo) {
    case Cargo::kWeights:
      return "weights";
    case Cargo::kGradients:
      return "gradients";
    case Cargo::kActivations:
      return "activations";
    case Cargo::kScalars:
      return "scalars";
  }
  return "";
}

Cargo CargoOf(const Program& program, const Graph& graph, const Node& node) {
  const auto is_gradient = [&](const Node& of) { return program.FindState(of.symbol)->kind == StateKind::kGradient; };
  if (node.op == Op::kSend || node.op == Op::kRecv) return Cargo::kActivations;
  if (node.results.empty() || graph.type(node.results[0]).bytes() <= kScalarBytes) return Cargo::kScalars;
  const std::vector<int> producers = graph.Producers();
  // What is read from a weight or its copy or is a new one, possibly through casts.
  for (ValueId v = node.operands[0]; producers[v] >= 0;) {
    const Node& producer = graph.nodes[producers[v]];
    if (producer.op == Op::kRead) return is_gradient(producer) ? Cargo::kGradients : Cargo::kWeights;
    if (producer.op != "cast" && producer.op != "reshape") break;
    v = producer.operands[0];
  }
  // What ends in a gradient or a weight, possibly through waits, casts and sums, or goes to the optimizer.
  ValueId v = node.results[0];
  for (const Node& user : graph.nodes) {
    if (std::find(user.operands.begin(), user.operands.end(), v) == user.operands.end()) continue;
    if (user.op == Op::kStore) {
      const StateKind kind = program.FindState(user.symbol)->kind;
      if (kind == StateKind::kGradient) return Cargo::kGradients;
      if (kind == StateKind::kWeight || kind == StateKind::kCopy) return Cargo::kWeights;
    } else if (user.op == Op::kWait || user.op == "add" || user.op == "cast") {
      v = user.results[0];
    } else if (graph.name == kUpdateGraph) {
      return Cargo::kGradients;
    }
  }
  return Cargo::kActivations;
}

std::vector<CommunicationRow> CommunicationOf(const Finalist& finalist, int stage) {
  const Program& program = finalist.stages[stage];
  std::map<std::tuple<std::string, std::string, Cargo>, CommunicationRow> rows;
  std::map<const Node*, Cargo> cargos;
  for (const Span& span : finalist.simulation.timeline) {
    if (span.stage != stage || span.lane != Lane::kCommunication) continue;
    const Graph& graph = *program.FindGraph(program.step[span.call].graph);
    const Node& node = graph.nodes[span.first_node];
    const auto [cargo, is_new] = cargos.try_emplace(&node, Cargo::kScalars);
    if (is_new) cargo->second = CargoOf(program, graph, node);
    const auto over = GetAttr<std::vector<std::string>>(node.attrs, "over");
    const std::string axes = over.empty() ? "pp" : absl::StrJoin(over, " ");
    CommunicationRow& row = rows[{std::string(node.op.name()), axes, cargo->second}];
    row.op = std::string(node.op.name());
    row.axes = axes;
    row.cargo = cargo->second;
    ++row.count;
    row.sent_bytes += finalist.times(stage, graph, node).sent_bytes;
    row.seconds += span.end - span.begin;
    row.exposed += span.exposed;
  }
  std::vector<CommunicationRow> sorted;
  for (auto& [key, row] : rows) sorted.push_back(std::move(row));
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const CommunicationRow& a, const CommunicationRow& b) { return a.seconds > b.seconds; });
  return sorted;
}

std::vector<ComputeRow> ComputeOf(const Finalist& finalist, int stage, const OpTable& ops) {
  const Program& program = finalist.stages[stage];
  std::map<std::string, double> kinds;
  for (const Call& call : program.step) {
    const Graph& graph = *program.FindGraph(call.graph);
    for (const Node& node : graph.nodes) {
      const OpDef* def = ops.Find(node.op);
      if (def == nullptr || def->is_collective || node.op == Op::kWait) continue;
      const std::string kind = graph.name == kUpdateGraph               ? "optimizer"
                               : absl::StartsWith(node.op, "attention") ? "attention"
                               : def->is_matmul                         ? "matrix products"
                                                                        : "elementwise and norms";
      kinds[kind] += finalist.times(stage, graph, node).seconds;
    }
  }
  std::vector<ComputeRow> rows;
  for (const auto& [kind, seconds] : kinds) {
    if (seconds > 0) rows.push_back({kind, seconds});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const ComputeRow& a, const ComputeRow& b) { return a.seconds > b.seconds; });
  return rows;
}

std::vector<LibTorchRow> LibTorchOf(const Finalist& finalist, int stage, const OpTable& ops) {
  const Program& program = finalist.stages[stage];
  std::map<std::string, LibTorchRow> found;
  std::set<std::string> seen;
  for (const Call& call : program.step) {
    const Graph& graph = *program.FindGraph(call.graph);
    const bool is_first = seen.insert(call.graph).second;
    for (const Node& node : graph.nodes) {
      if (node.op != "aten" && node.op != "aten_vjp") continue;
      LibTorchRow& row = found[GetAttr<std::string>(node.attrs, "schema")];
      row.seconds += finalist.times(stage, graph, node).seconds;
      if (!is_first) continue;
      if (node.op == "aten") ++row.count;
      const OpCall sizes = CallOf(graph, node);
      for (const TensorType& type : sizes.results) row.result_bytes += type.bytes();
      row.scratch_bytes =
          std::max(row.scratch_bytes, WorkspaceBytes(*ops.Find(node.op), sizes, Target(), Parts::kInARow));
    }
  }
  std::vector<LibTorchRow> rows;
  for (auto& [schema, row] : found) {
    row.schema = schema;
    row.share_of_step = row.seconds / finalist.simulation.step_seconds;
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const LibTorchRow& a, const LibTorchRow& b) { return a.seconds > b.seconds; });
  return rows;
}

}  // namespace tacc::graph
