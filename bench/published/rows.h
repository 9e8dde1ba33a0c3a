// Published measurements of training steps, as requests to the planner.
#ifndef TACC_BENCH_PUBLISHED_ROWS_H_
#define TACC_BENCH_PUBLISHED_ROWS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/planner/calibrate.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/cost/estimate.h"
#include "graph/planner/cost/work.h"

namespace tacc::bench {

// The shape of a GPT or a LLaMA.
struct ModelShape {
  int64_t hidden = 0, heads = 0, kv_heads = 0, mlp = 0, layers = 0, vocabulary = 0, seq_len = 0;
  bool gated = false;             // SwiGLU and RMS norms instead of GELU and layer norms; no biases
  bool attention_in_one = false;  // flash attention: scores never reach memory
};

// One measured step.
struct Row {
  std::string model;  // what is left out in turn
  std::string group;  // same model, GPUs and batch
  ModelShape shape;
  graph::Layout layout;
  bool layout_is_whole = true;  // false: micro-batch and interleaving were not published
  double seconds = 0;
};

// A table of measured steps: the machine as its data sheet says (what is fitted starts there), how its software runs.
struct Table {
  std::string name;
  graph::Machine machine;
  graph::Execution execution;
  std::vector<Row> rows;
  double bar = 0;        // mean absolute error wanted, a fraction
  std::string calculon;  // what Calculon, uncalibrated, has on it; may be empty

  graph::Setting setting() const { return {machine, execution}; }
};

// vTrain multi-node, vTrain single-node, DGX H100, Megatron SC21 from the csv files in `folder` (bench/data). Errors:
// NotFound for a missing file, InvalidArgument "file:line: ..." for a row that cannot be read.
absl::StatusOr<std::vector<Table>> ReadTables(const std::string& folder);

// The work of a model as Megatron-LM and its descendants run it: one kernel a line of its modules, attention scores in
// memory unless `attention_in_one`.
graph::ModelWork WorkOf(const ModelShape& shape);

}  // namespace tacc::bench

#endif  // TACC_BENCH_PUBLISHED_ROWS_H_
