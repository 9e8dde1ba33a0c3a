#ifndef TACC_GRAPH_PLANNER_SIMULATE_TESTING_TEST_PROGRAM_H_
#define TACC_GRAPH_PLANNER_SIMULATE_TESTING_TEST_PROGRAM_H_

#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"

namespace tacc::graph {

// The test model's training program, planned, for `fsdp` ranks of 4 rows each and two micro-batches.
// `prefetch_units` 0: nothing is asynchronous.
inline absl::StatusOr<Program> CompileTestProgram(const OpTable& ops, int64_t fsdp, int prefetch_units) {
  ParseOptions parse;
  parse.symbols = {{"B", 4 * fsdp}, {"S", 6}};
  auto forward = ParseGraph(TestModelText(), parse);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.accumulation = 2;
  options.partition.mesh = {{{"fsdp", fsdp}}};
  options.partition.batch_axes = options.partition.at_rest_axes = {0};
  options.schedule.units = {"layers.0", "layers.1"};
  options.schedule.prefetch_units = prefetch_units;
  auto compiled = Compile(*forward, ops, options);
  if (!compiled.ok()) return compiled.status();
  return std::move(compiled->stages[0]);
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_TESTING_TEST_PROGRAM_H_
