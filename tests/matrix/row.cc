#include "tests/matrix/row.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/analysis/cost.h"
#include "graph/ir/status_macros.h"
#include "tests/matrix/theory.h"

namespace tacc::matrix {
namespace {

using graph::Program;

// FLOPs of a step's matrix products, by layer; those outside of layers are the head's.
std::map<std::string, double> FlopsByUnit(const Program& program, const graph::DecoderSpec& spec,
                                          const graph::OpTable& ops) {
  const auto unit_of = [&spec](const std::string& module) {
    for (int64_t layer = 0; layer < spec.num_layers; ++layer) {
      const std::string path = spec.LayerPath(layer);
      if (module == path || absl::StartsWith(module, absl::StrCat(path, "."))) return path;
    }
    return std::string("head");
  };
  std::map<std::string, double> flops;
  for (const graph::Call& call : program.step) {
    const graph::Graph& graph = *program.FindGraph(call.graph);
    for (const graph::Node& node : graph.nodes) {
      const graph::OpDef* op = ops.Find(node.op);
      if (op->is_matmul) flops[unit_of(node.module)] += op->flops(graph::CallOf(graph, node));
    }
  }
  return flops;
}

double BytesOfStates(const Program& program) {
  double bytes = 0;
  for (const graph::State& state : program.states) {
    if (state.kind == graph::StateKind::kWeight || state.kind == graph::StateKind::kOptimizer)
      bytes += static_cast<double>(state.type.bytes());
  }
  return bytes;
}

// The share of a stage's rank in the work that the stage's layers are for one rank alone.
double FlopsShare(const Program& stage, const Program& one, const graph::DecoderSpec& spec, const Layout& layout,
                  const graph::OpTable& ops) {
  const std::map<std::string, double> whole = FlopsByUnit(one, spec, ops);
  double of_rank = 0, of_stage = 0;
  for (const auto& [unit, flops] : FlopsByUnit(stage, spec, ops)) {
    of_rank += flops;
    of_stage += whole.at(unit);
  }
  return of_rank * static_cast<double>(layout.ranks_of_stage()) / of_stage;
}

// What the plan says that a rank on a CPU gives to its transport in a step.
double BytesToSend(const Program& program, const graph::OpTable& ops) {
  graph::DeviceProfile cpu;
  cpu.kind = "cpu";
  return static_cast<double>(graph::StepCostOf(program, ops, cpu).sent_bytes);
}

bool SameExperts(const worker::TrainingLog& many, const worker::TrainingLog& one) {
  const auto chosen = one.outputs.find(kChosenExperts);
  if (chosen == one.outputs.end()) return true;  // there are none
  const auto overflow = many.outputs.find("expert_overflow");
  return many.outputs.at(kChosenExperts) == chosen->second &&
         (overflow == many.outputs.end() || overflow->second == std::vector<double>(kSteps, 0.0));
}

}  // namespace

double Difference(const std::vector<double>& many, const std::vector<double>& one) {
  if (many.size() != one.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    const double difference = std::abs(many[i] / one[i] - 1);
    if (!(difference <= largest)) largest = difference;  // not a number counts
  }
  return largest;
}

double LossTolerance(const Layout& layout) { return layout.cp > 1 ? 1e-5 : 1e-6; }

absl::StatusOr<const Reference*> References::Of(const Job& job) {
  if (const auto it = references_.find(job); it != references_.end()) return &it->second;
  TACC_ASSIGN_OR_RETURN(graph::Compiled compiled, CompileJob(job, Layout(), ops_));
  TACC_ASSIGN_OR_RETURN(TrainingRun run, Train(job, compiled.stages, ops_, 0, kSteps));
  return &references_.emplace(job, Reference{std::move(compiled), std::move(run.log)}).first->second;
}

absl::StatusOr<Row> MeasureRow(const std::string& family, const Layout& layout, const graph::OpTable& ops,
                               References& references) {
  const Job job = JobFor(family, layout);
  Row row;
  const absl::StatusOr<graph::Compiled> compiled = CompileJob(job, layout, ops);
  if (!compiled.ok()) {
    row.refusal = std::string(compiled.status().message());
    return row;
  }
  TACC_ASSIGN_OR_RETURN(const Reference* one, references.Of(job));
  TACC_ASSIGN_OR_RETURN(const graph::DecoderSpec spec, SpecOf(job));
  const std::vector<StageTheory> theory = TheoryOf(job, spec, layout);
  row.least_sent = std::numeric_limits<double>::infinity();
  for (size_t stage = 0; stage < compiled->stages.size(); ++stage) {
    const Program& program = compiled->stages[stage];
    row.flops_share = std::max(row.flops_share, FlopsShare(program, one->compiled.stages[0], spec, layout, ops));
    row.bytes_share = std::max(row.bytes_share, BytesOfStates(program) / theory[stage].state_bytes);
    const auto sent = static_cast<double>(graph::StepCostOf(program, ops, graph::DeviceProfile()).sent_bytes);
    row.least_sent = std::min(row.least_sent, sent / theory[stage].sent_bytes);
    row.most_sent = std::max(row.most_sent, sent / theory[stage].sent_bytes);
  }
  TACC_ASSIGN_OR_RETURN(const TrainingRun run, Train(job, compiled->stages, ops, 0, kSteps));
  for (size_t rank = 0; rank < run.sent.size(); ++rank) {
    const Program& program = worker::ProgramOf(compiled->stages, static_cast<int64_t>(rank));
    const double wanted = BytesToSend(program, ops), counted = static_cast<double>(run.sent[rank].bytes);
    row.counting_difference = std::max(row.counting_difference, std::abs(counted / wanted - 1));
    const auto planned = static_cast<double>(graph::StepCostOf(program, ops, graph::DeviceProfile()).sent_bytes);
    row.counted_sent = std::max(row.counted_sent, counted / planned);
  }
  row.loss_difference = Difference(run.log.losses(), one->log.losses());
  row.norm_difference = Difference(run.log.norms(), one->log.norms());
  row.same_experts = SameExperts(run.log, one->log);
  return row;
}

}  // namespace tacc::matrix
