#ifndef TACC_TESTS_INTERPRETER_SIMULATION_H_
#define TACC_TESTS_INTERPRETER_SIMULATION_H_

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "tests/interpreter/evaluate.h"
#include "tests/interpreter/shards.h"

namespace tacc::interpreter {

// Whole logical arrays by name.
using Arrays = std::map<std::string, Array>;

// Runs one graph on all ranks of `mesh` in lockstep and in double precision, padding filled with NaN after each node.
// `leaves`: the values of input, param and read nodes. Returns what the graph's output and store nodes name. A value
// without a placement is whole on each rank, so a logical graph runs with an empty mesh. Errors: InvalidArgument for a
// missing leaf or one of other dims; those of Assemble, naming the node.
absl::StatusOr<Arrays> RunGraph(const graph::Graph& graph, const graph::Mesh& mesh, const Arrays& leaves);

// A program of any level with its states, on the simulated ranks of its mesh.
class Simulation {
 public:
  explicit Simulation(const graph::Program& program);

  // States start as zeros ("ones": ones).
  absl::Status SetState(const std::string& name, const Array& logical);
  // The whole state. Errors as Assemble's.
  absl::StatusOr<Array> GetState(const std::string& name) const;

  // Runs the calls in order. inputs(m): the inputs of micro-batch m, over all ranks.
  absl::Status Run(const std::vector<graph::Call>& calls, const std::function<Arrays(int64_t micro_batch)>& inputs);
  // By name, of the calls so far.
  const Arrays& outputs() const { return outputs_; }

 private:
  const graph::Program& program_;
  EvaluatorTable evaluators_;
  Random random_;
  std::map<std::string, Shards> states_;
  Arrays outputs_;
};

}  // namespace tacc::interpreter

#endif  // TACC_TESTS_INTERPRETER_SIMULATION_H_
