#ifndef TACC_WORKER_RANK_EXECUTOR_H_
#define TACC_WORKER_RANK_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failpoint/failpoint.h"
#include "graph/ir/program.h"
#include "kernels/tensor.h"
#include "worker/rank/arena.h"
#include "worker/rank/bind_collective.h"
#include "worker/rank/collectives.h"
#include "worker/rank/kernel_table.h"
#include "worker/rank/status_block.h"

namespace tacc::worker {

// Which operand each result of a node aliases, -1 for none; may be shorter than the results (graph::OpDef::aliases).
using AliasFunction = std::function<std::vector<int>(const graph::Graph&, const graph::Node&)>;

struct ExecutorOptions {
  const graph::Program* program = nullptr;  // Must outlive the executor, as all that follows.
  int64_t rank = 0;
  const KernelTable* kernels = nullptr;
  AliasFunction aliases;
  Collectives* collectives = nullptr;  // May be null when the program has none.
  // Of a planned program: every value lies at its offset. Null: states and values get memory of their own, reads and
  // stores copy; for programs that are not planned yet.
  Arena* arena = nullptr;
  StatusBlock* status = nullptr;     // May be null.
  Failpoints* failpoints = nullptr;  // May be null.
};

// Seconds spent in the nodes of one op and module, since the profile was started.
struct ProfileEntry {
  std::string op;
  std::string module;
  int64_t count = 0;
  double seconds = 0;
};

// One rank's program, bound once: each node is a prepared call on fixed memory, and a step walks a flat array.
//
// Whoever fills the inputs gives one pointer per input for each micro-batch, in the order of inputs(): this rank's own
// rows, dense. They are copied when the graph's `input` node runs. Not thread-safe.
class Executor {
 public:
  struct Input {
    std::string name;
    graph::Value value;  // Type and placement.
    int64_t zigzag = 0;  // Order of its dim 1 (graph/ir/sequence_order.h).
  };

  // Errors: InvalidArgument for a program that does not fit together (unknown state, input with two types, missing
  // offsets, too large a rank); Unimplemented for an op without a kernel. Each names graph, node and module.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const ExecutorOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Inputs of all graphs, each name once, in order of first appearance.
  const std::vector<Input>& inputs() const { return inputs_; }
  // One more than the largest micro-batch of the step's calls.
  int64_t num_micro_batches() const { return num_micro_batches_; }

  // This rank's part of a state (of a stash: the first copy); `name` must exist.
  kernels::TensorView state(const std::string& name) const { return states_.at(name)[0]; }

  // Runs the step's calls. inputs[m][i]: input i of micro-batch m. Errors: Unavailable when another rank does not
  // answer; Internal when a kernel fails; both name the node. After an error states are undefined.
  absl::Status RunStep(const std::vector<std::vector<const void*>>& inputs);
  // Runs the eval calls on one batch, as micro-batch 0.
  absl::Status RunEval(const std::vector<const void*>& inputs);

  bool has_eval() const { return !options_.program->eval.empty(); }

  // The value that `output "name"` had last; NotFound when no graph has run that has it.
  absl::StatusOr<double> Output(const std::string& name) const;

  void StartProfile();
  // By seconds, most first.
  std::vector<ProfileEntry> Profile() const;

 private:
  struct Instruction;
  struct UnderWay;
  struct BoundGraph;
  struct BoundCall {
    const BoundGraph* graph = nullptr;
    int64_t micro_batch = 0;
  };
  class Binder;

  explicit Executor(const ExecutorOptions& options);
  absl::Status RunGraph(const BoundGraph& graph, uint32_t call_index, const std::vector<const void*>& inputs);
  absl::Status RunCollective(const Instruction& instruction, uint32_t call_index);
  absl::Status Annotate(const BoundGraph& graph, const Instruction& instruction, const absl::Status& status) const;

  ExecutorOptions options_;
  std::vector<Input> inputs_;
  int64_t num_micro_batches_ = 0;
  std::map<std::string, std::vector<kernels::TensorView>> states_;  // By copy.
  std::vector<std::unique_ptr<char[]>> owned_;                      // Memory of values and states without an arena.
  // A graph is bound once for each combination of the copies of stashes that its calls work on.
  std::map<std::pair<std::string, std::vector<int64_t>>, std::unique_ptr<BoundGraph>> graphs_;
  std::vector<BoundCall> step_, eval_;
  std::map<std::string, double> outputs_;
  bool is_profiling_ = false;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_EXECUTOR_H_
