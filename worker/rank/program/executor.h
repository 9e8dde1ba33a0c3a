// A program bound to a device's kernels and memory, and run step by step.
#ifndef TACC_WORKER_RANK_PROGRAM_EXECUTOR_H_
#define TACC_WORKER_RANK_PROGRAM_EXECUTOR_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failpoint/failpoint.h"
#include "graph/ir/capture.h"
#include "graph/ir/program.h"
#include "graph/ops/input_axes.h"
#include "kernels/tensor.h"
#include "worker/rank/collectives/bind_collective.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/activity.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/kernel_table.h"
#include "worker/rank/device/marks.h"
#include "worker/rank/program/device_watch.h"
#include "worker/rank/program/step_timer.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {

// Returns the operand that each result of a node aliases, -1 for none; may be shorter than the results
// (graph::OpDef::aliases).
using AliasFunction = std::function<std::vector<int>(const graph::Graph&, const graph::Node&)>;

struct ExecutorOptions {
  const graph::Program* program = nullptr;  // All pointers here are borrowed and must outlive the executor.
  // The same training for other batches, as shorter ones: the same calls, on the program's states in its places.
  std::vector<const graph::Program*> others;
  int64_t rank = 0;
  Device* device = nullptr;
  AliasFunction aliases;
  CollectiveQueue* collectives = nullptr;  // May be null when the program has none.
  // The device's arena for a planned program, where every value lies at its offset. Null, for programs that are not
  // planned yet, on a CPU: states and values get memory of their own, and reads and stores copy.
  Arena* arena = nullptr;
  DeviceWatch* watch = nullptr;      // Watches an asynchronous device; may be null.
  StatusBlock* status = nullptr;     // May be null.
  Failpoints* failpoints = nullptr;  // May be null.
};

// One rank's program, bound once: each node is a prepared call on fixed memory, and a step walks a flat array.
//
// On an asynchronous device a step is queued, and the host goes on: up to kMaxInFlight steps may have been launched and
// not finished. The instructions between two that need the host are recorded at their second run and replayed from then
// on (graph/ir/capture.h).
//
// The caller passes one pointer per input for each micro-batch, in the order of inputs(): this rank's own rows, dense.
// With others than one program it says which of them runs a micro-batch: `program` counts from the options' `program`,
// 0, through `others`.
// Not thread-safe.
class Executor {
 public:
  struct Input {
    std::string name;
    graph::Value value;                  // Type and placement.
    int64_t zigzag = 0;                  // Order of its sequence's dim (graph/ir/sequence_order.h).
    std::vector<graph::InputAxis> axes;  // What its dims hold.
    std::optional<double> absent;        // Of a scalar that a client may leave out: its value then.
    // Of whole numbers: what they are below, and not negative, but for the one that is ignored.
    std::optional<int64_t> limit, ignored;
  };
  // What a model returns beside its loss (an output with returned=true): this rank's part of it.
  struct Returned {
    std::string name;
    graph::Value value;     // Type and placement.
    std::string_view data;  // Dense, of the evaluation finished last.
  };

  static constexpr int kMaxInFlight = 2;

  // Errors: InvalidArgument for a program that does not fit together (unknown state, input with two types, missing
  // offsets, too large a rank); Unimplemented for an op without a kernel. Each names graph, node and module.
  static absl::StatusOr<std::unique_ptr<Executor>> Create(const ExecutorOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Inputs of all graphs, each name once, in order of first appearance, the same in all programs. Lives as long as the
  // executor.
  const std::vector<Input>& inputs(size_t program = 0) const { return programs_[program].inputs; }
  // One more than the largest micro-batch of the step's calls.
  int64_t num_micro_batches() const { return num_micro_batches_; }

  // This rank's part of a state (the first copy of a stash), as a view of the arena or of the executor's own memory.
  // `name` must exist.
  kernels::TensorView state(const std::string& name) const { return programs_[0].states.at(name)[0]; }

  // On an asynchronous device: runs the step and the evaluation once without their messages, on memory as it is, and
  // waits for them. Called by all ranks before the states have values; leaves them undefined. The device and its
  // libraries make here what they make at first use (loaded kernels, connections between ranks), so that no rank waits
  // for it while another waits for that rank. Errors: as Launch.
  absl::Status WarmUp();
  // Starts the step's calls. inputs[m][i] is input i of micro-batch m; it may be overwritten once Launch has returned.
  // programs[m] runs it; none: the first.
  // Errors: Unavailable when another rank does not answer; Internal when a kernel fails. Both name a node: the one that
  // failed, or on an asynchronous device perhaps a later one for a kernel. After an error states are undefined.
  absl::Status Launch(const std::vector<std::vector<const void*>>& inputs, std::vector<size_t> programs = {});
  // Returns when the oldest launched step is done, whose outputs Output then gives. Errors: as Launch.
  absl::Status Finish();
  // Steps launched and not finished.
  int64_t num_in_flight() const { return num_launched_ - num_finished_; }
  // Launch and Finish. Nothing may be in flight.
  absl::Status RunStep(const std::vector<std::vector<const void*>>& inputs);
  // A step by parts: each micro-batch by itself, as many as the caller likes, then the update by their gradients.
  // Why that cannot be after `num_run` micro-batches, as the beginning of a sentence; empty: it can.
  std::string WhyNotByParts(int64_t num_run) const;
  // Why micro-batches of one step cannot be run by different programs, as the beginning of a sentence; empty: they can.
  std::string WhyNotMixed() const;
  // Forward and backward of one micro-batch. Nothing may be in flight.
  absl::Status RunMicroBatch(const std::vector<std::vector<const void*>>& inputs, bool is_first, size_t program = 0);
  // Launches the update alone, as Launch; it takes the inputs "step" only. `program`: that of the last micro-batch.
  absl::Status LaunchUpdate(const std::vector<std::vector<const void*>>& inputs, size_t program = 0);
  // Runs the eval calls on one batch, as micro-batch 0. Nothing may be in flight.
  absl::Status RunEval(const std::vector<const void*>& inputs, size_t program = 0);

  bool has_eval() const { return !options_.program->eval.empty(); }

  // What the evaluation returns; none where the program was compiled without.
  const std::vector<Returned>& returned(size_t program = 0) const { return programs_[program].returned; }

  // The value of `output "name"` in the step or evaluation finished last. Errors: NotFound when no graph with it has
  // run.
  absl::StatusOr<double> Output(const std::string& name) const;

  // Seconds in which the device had work in the step finished last, without its waits for the host or for messages of
  // other ranks. A replayed recording counts from its beginning to its end. None on a CPU.
  std::optional<double> busy_seconds() const { return busy_seconds_; }
  // The spans of busy_seconds(), in seconds since a mark of the device that was set before that step was launched.
  // Nothing may have been launched after it. Empty on a CPU.
  absl::StatusOr<std::vector<TimeSpan>> BusyParts(const Device::Mark& since) const;

  // Parts that the step finished last replayed from their recordings. 0 on a CPU.
  int64_t num_replays() const { return num_replays_; }

  // How the graphs are recorded; empty on a CPU.
  std::vector<graph::CapturePart> Parts() const;

  // Times each instruction launched from now on, and replays no recording meanwhile; null ends that. The timer is
  // borrowed. Nothing may be in flight.
  void SetTimer(StepTimer* timer) { timer_ = timer; }

 private:
  struct Instruction;
  struct UnderWay;
  struct Part;
  struct BoundGraph;
  struct BoundCall {
    BoundGraph* graph = nullptr;
    int64_t micro_batch = 0;
    size_t program = 0;
  };
  struct BoundProgram {
    const graph::Program* program = nullptr;
    std::vector<Input> inputs;
    std::map<std::string, std::vector<kernels::TensorView>> states;  // By copy.
    // A graph is bound once for each combination of the copies of stashes that its calls work on.
    std::map<std::pair<std::string, std::vector<int64_t>>, std::unique_ptr<BoundGraph>> graphs;
    std::vector<BoundCall> step, eval;
    std::vector<Returned> returned;
    // Of each: where it is kept, on an asynchronous device from its output on, and on the host.
    std::vector<std::unique_ptr<Arena>> returned_on_device, returned_on_host;
  };
  // Memory of one step in flight on an asynchronous device: its inputs, on the host and on the device, and where its
  // outputs come back.
  struct Lane {
    std::unique_ptr<Arena> host;
    char* device_inputs = nullptr;  // [micro-batch][input]
    char* host_outputs = nullptr;
    std::unique_ptr<Device::Mark> done;
    Marks work;  // Where work begins and where it ends, in turn.
    int64_t num_replays = 0;
    explicit Lane(Device* device) : work([device] { return device->CreateMark(); }) {}
  };
  class Binder;

  explicit Executor(const ExecutorOptions& options);
  graph::TalkPlace talk_place() const;
  absl::Status CreateLanes();
  // `programs`: of each micro-batch.
  absl::Status RunCalls(const std::vector<BoundCall>& calls, const std::vector<std::vector<const void*>>& inputs,
                        const std::vector<size_t>& programs, uint32_t first_index);
  // Fills the lane's inputs on the device, ahead; `inputs` may be overwritten then.
  absl::Status UploadBatch(const std::vector<std::vector<const void*>>& inputs, const std::vector<size_t>& programs,
                           Lane& lane);
  absl::Status DownloadOutputs(Lane& lane);
  absl::Status RunGraph(BoundGraph& graph, uint32_t call_index, Lane* lane);
  absl::Status RunPart(BoundGraph& graph, Part& part, uint32_t call_index, Lane* lane);
  absl::StatusOr<double> BusySeconds(const Lane& lane) const;
  absl::Status RunInstructions(const BoundGraph& graph, size_t begin, size_t end, uint32_t call_index);
  absl::Status RunInstruction(const BoundGraph& graph, const Instruction& instruction, uint32_t call_index);
  // Tells the watch which instructions were queued last.
  void ShowQueued(const BoundGraph& graph, size_t begin, size_t end, uint32_t call_index) const;
  absl::Status RunCollective(const Instruction& instruction, uint32_t call_index);
  // Writes the place to the status block, where the host walks from instruction to instruction. A device on which
  // collectives are queued shows its place by itself.
  void ShowPlace(uint32_t call_index, const Instruction& instruction, Activity activity) const;
  absl::Status Annotate(const BoundGraph& graph, const Instruction& instruction, const absl::Status& status) const;

  ExecutorOptions options_;
  std::vector<BoundProgram> programs_;
  bool shares_gradients_ = true;  // They lie at one place in all programs.
  int64_t num_micro_batches_ = 0;
  std::vector<std::unique_ptr<char[]>> owned_;  // Memory of values and states without an arena.
  std::vector<std::unique_ptr<Arena>> kept_;    // What kernels read on the device.
  // Each output's number, and its value in the step that was finished last (on a CPU: that was run last).
  struct OutputPlace {
    int64_t index = 0;
    kernels::DType dtype = kernels::DType::kF32;
    bool is_bound = false;
    bool has_run = false;
    double value = 0;
  };
  std::map<std::string, OutputPlace> outputs_;
  // Where `input` nodes take input i from. On an asynchronous device one place, to which each call's are copied first.
  std::vector<const void*> input_places_;
  // On an asynchronous device:
  std::vector<int64_t> input_offsets_;  // of each input in a micro-batch's block, of the largest of all programs
  int64_t batch_bytes_ = 0;             // of such a block
  std::unique_ptr<Arena> device_io_;    // lanes' inputs, the place of input_places_, outputs
  char* device_outputs_ = nullptr;      // 8 bytes each
  std::vector<Lane> lanes_;
  int64_t num_launched_ = 0, num_finished_ = 0;
  std::optional<double> busy_seconds_;
  int64_t num_replays_ = 0;
  StepTimer* timer_ = nullptr;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_EXECUTOR_H_
