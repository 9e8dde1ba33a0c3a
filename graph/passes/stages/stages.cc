#include "graph/passes/stages/stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/rewrite/simplify.h"
#include "graph/passes/stages/graph_cutter.h"

namespace tacc::graph {
namespace {

// The calls of an evaluation: everything that arrives is awaited from the start.
std::vector<Call> EvalCalls(const Program& program, int num_chunks) {
  std::vector<Call> calls;
  for (const char* prefix : {"receive.", "", "finish."}) {
    for (int chunk = 0; chunk < num_chunks; ++chunk) {
      const std::string name = absl::StrCat(prefix, "eval.", chunk);
      if (program.FindGraph(name) != nullptr) calls.push_back({name, 0});
    }
  }
  return calls;
}

// The states that each graph reads or stores.
void CollectStates(const Graph& graph, int stage, std::map<std::string, std::set<int>>& stages_of) {
  for (const Node& node : graph.nodes) {
    if (node.op == Op::kRead || node.op == Op::kStore) stages_of[node.symbol].insert(stage);
  }
}

// A stage has all states of a parameter, or none; every stage has the loss scale, and updates it alike.
void CompleteStates(const Program& program, int num_stages, std::map<std::string, std::set<int>>& stages_of) {
  std::map<std::string, std::set<int>> stages_of_parameter;
  const auto parameter = [](const State& state) { return state.name.substr(state.name.find('/') + 1); };
  const auto belongs = [](const State& state) {
    return state.kind != StateKind::kCounter && state.kind != StateKind::kLossScale && state.kind != StateKind::kStash;
  };
  for (const State& state : program.states) {
    if (belongs(state)) stages_of_parameter[parameter(state)].merge(std::set<int>(stages_of[state.name]));
  }
  for (const State& state : program.states) {
    if (belongs(state)) stages_of[state.name] = stages_of_parameter[parameter(state)];
    if (state.kind != StateKind::kLossScale) continue;
    for (int stage = 0; stage < num_stages; ++stage) stages_of[state.name].insert(stage);
  }
}

}  // namespace

absl::StatusOr<bool> CutStages(std::vector<Program>& programs, const OpTable& ops, const StageOptions& options) {
  const Program& program = programs[0];
  const int axis = program.mesh.Find(kStageAxis);
  if (axis < 0) return absl::InternalError(absl::StrCat("the mesh has no axis ", kStageAxis));
  const Graph* training = program.FindGraph("forward_backward");
  const Graph* update = program.FindGraph(kUpdateGraph);
  const Graph* eval = program.FindGraph("eval");
  if (training == nullptr || update == nullptr || eval == nullptr)
    return absl::InvalidArgumentError("wanted the graphs forward_backward, update and eval");
  PipelineShape shape;
  shape.schedule = options.schedule;
  shape.num_stages = static_cast<int>(program.mesh.axes[axis].size);
  shape.num_chunks = options.num_chunks;
  shape.num_micro_batches = std::count_if(program.step.begin(), program.step.end(),
                                          [](const Call& call) { return call.graph == "forward_backward"; });
  int next_channel = 0;
  TACC_ASSIGN_OR_RETURN(CutGraph steps, GraphCutter(*training, program, ops, options, shape, &next_channel).Run());
  TACC_ASSIGN_OR_RETURN(CutGraph evals, GraphCutter(*eval, program, ops, options, shape, &next_channel).Run());
  std::map<std::string, std::set<int>> stages_of;
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    for (const CutGraph* cut : {&steps, &evals}) {
      for (const Graph& graph : cut->graphs[stage]) CollectStates(graph, stage, stages_of);
    }
  }
  CompleteStates(program, shape.num_stages, stages_of);
  TACC_ASSIGN_OR_RETURN(std::vector<Graph> updates, CutUpdate(*update, program, ops, stages_of, shape.num_stages));

  std::vector<Program> stages(shape.num_stages);
  for (const State& state : program.states) {
    const std::set<int>& on = stages_of[state.name];
    for (int stage : on) {
      stages[stage].states.push_back(state);
      if (*on.begin() != stage) stages[stage].states.back().owner = *on.begin();
    }
  }
  const Graph* begin = program.FindGraph(kBeginGraph);
  std::vector<Graph> begins;
  if (begin != nullptr) begins = CutBegin(*begin, ops, stages_of, shape.num_stages);
  for (int stage = 0; stage < shape.num_stages; ++stage) {
    Program& out = stages[stage];
    out.level = program.level;
    out.mesh = program.mesh;
    out.stage = stage;
    out.num_stages = shape.num_stages;
    for (CutGraph* cut : {&steps, &evals}) {
      for (State& state : cut->stashes[stage]) out.states.push_back(std::move(state));
    }
    if (begin != nullptr) {
      out.graphs.push_back(std::move(begins[stage]));
      out.step.push_back({begin->name, 0});
    }
    for (Graph& graph : steps.graphs[stage]) out.graphs.push_back(std::move(graph));
    out.graphs.push_back(std::move(updates[stage]));
    for (Graph& graph : evals.graphs[stage]) out.graphs.push_back(std::move(graph));
    TACC_ASSIGN_OR_RETURN(const std::vector<PassCall> passes, PassesOf(shape, stage));
    for (Call& call : CallsOf(out, passes)) out.step.push_back(std::move(call));
    out.step.push_back({kUpdateGraph, 0});
    out.eval = EvalCalls(out, shape.num_chunks);
    AssignSlots(out);
  }
  programs = std::move(stages);
  return true;
}

}  // namespace tacc::graph
