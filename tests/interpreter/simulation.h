// Programs run by the interpreter on all ranks of a mesh, or of a pipeline.
#ifndef TACC_TESTS_INTERPRETER_SIMULATION_H_
#define TACC_TESTS_INTERPRETER_SIMULATION_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/interpreter/evaluate.h"
#include "graph/ir/program.h"
#include "tests/interpreter/shards.h"
#include "tests/interpreter/stage_exchange.h"

namespace tacc::interpreter {

// Whole logical arrays by name.
using Arrays = std::map<std::string, Array>;

// Runs one graph on all ranks of `mesh` in lockstep and in double precision, padding filled with NaN after each node.
// `leaves`: the values of input, param and read nodes. Returns what the graph's output and store nodes name. A value
// without a placement is whole on each rank, so a logical graph runs with an empty mesh. Errors: InvalidArgument for a
// missing leaf or one of other dims; those of Assemble, naming the node.
absl::StatusOr<Arrays> RunGraph(const graph::Graph& graph, const graph::Mesh& mesh, const Arrays& leaves);

// A program of any level with its states, on the simulated ranks of its mesh: of one stage of a pipeline, on the ranks
// of that stage.
class Simulation {
 public:
  // `exchange`: to the other stages, when there are any.
  explicit Simulation(const graph::Program& program, StageExchange* exchange = nullptr);

  // States start as zeros ("ones": ones; "constant(VALUE)": that).
  absl::Status SetState(const std::string& name, const Array& logical);
  // The whole state. Errors as Assemble's.
  absl::StatusOr<Array> GetState(const std::string& name) const;

  // Runs the calls in order. inputs(m): the inputs of micro-batch m, over all ranks.
  absl::Status Run(const std::vector<graph::Call>& calls, const std::function<Arrays(int64_t micro_batch)>& inputs);
  // By name, of the calls so far.
  const Arrays& outputs() const { return outputs_; }

  const graph::Program& program() const { return program_; }

 private:
  // The copy of a state that a call on this micro-batch works on.
  std::string KeyOf(const std::string& state, int64_t micro_batch) const;

  const graph::Program& program_;
  graph::Mesh mesh_;  // of the ranks of this stage
  StageExchange* exchange_;
  EvaluatorTable evaluators_;
  Random random_;
  std::map<std::string, Shards> states_;
  Arrays outputs_;
};

// The programs of all stages of a pipeline, each on a thread.
class PipelineSimulation {
 public:
  explicit PipelineSimulation(const std::vector<graph::Program>& stages);

  // On every stage that has the state. Errors as Simulation's.
  absl::Status SetState(const std::string& name, const Array& logical);
  // Of every stage that has the state. Internal: they differ by more than 1e-9 relative.
  absl::StatusOr<Array> GetState(const std::string& name) const;

  using Inputs = std::function<Arrays(int64_t micro_batch)>;  // called by several threads
  absl::Status RunStep(const Inputs& inputs) { return Run(&graph::Program::step, inputs); }
  absl::Status RunEval(const Inputs& inputs) { return Run(&graph::Program::eval, inputs); }
  const Arrays& outputs(int stage) const { return simulations_[stage]->outputs(); }

 private:
  absl::Status Run(std::vector<graph::Call> graph::Program::*calls, const Inputs& inputs);

  std::unique_ptr<StageExchange> exchange_;
  std::vector<std::unique_ptr<Simulation>> simulations_;
};

}  // namespace tacc::interpreter

#endif  // TACC_TESTS_INTERPRETER_SIMULATION_H_
