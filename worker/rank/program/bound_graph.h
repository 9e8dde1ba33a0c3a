// The executor's inside: what a graph becomes when it is bound. Included by executor.cc, binder.cc and bind_node.cc
// only.
#ifndef TACC_WORKER_RANK_PROGRAM_BOUND_GRAPH_H_
#define TACC_WORKER_RANK_PROGRAM_BOUND_GRAPH_H_

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/program/executor.h"

namespace tacc::worker {

// A message between stages, from its send or recv to its finish, which may be in another graph.
struct Executor::UnderWay {
  CollectiveCall call;
  CollectiveQueue::Ticket ticket = 0;
  bool is_bound = false;
};

struct Executor::Instruction {
  enum class Kind { kKernel, kInput, kOutput, kCollective, kStart, kWait, kPost, kFinish };
  Kind kind = Kind::kKernel;
  int node = 0;                          // Index in the graph: what is published and named in errors.
  Kernel kernel;                         // kKernel: of this node, and maybe of some that follow
  int request = -1;                      // kKernel, while it is bound: of the binder's requests, for its kernel
  int input = 0;                         // kInput: index in inputs()
  OutputPlace* output = nullptr;         // kOutput of a number; else
  char* returned = nullptr;              // where what it returns is kept
  kernels::TensorView view;              // kInput, kOutput
  std::unique_ptr<CollectiveCall> call;  // kCollective, kStart
  // kStart, kWait: the ticket they share.
  std::shared_ptr<CollectiveQueue::Ticket> ticket;
  std::shared_ptr<UnderWay> message;  // kPost, kFinish
  bool is_collective() const { return kind != Kind::kKernel && kind != Kind::kInput && kind != Kind::kOutput; }
  // Whether it takes as long as the host or messages of other ranks do.
  bool waits(graph::TalkPlace place) const {
    return kind == Kind::kFinish || (place == graph::TalkPlace::kHost && is_collective());
  }
  StepTimes::Role role() const {
    switch (kind) {
      case Kind::kCollective:
        return StepTimes::Role::kCommunicates;
      case Kind::kStart:
      case Kind::kPost:
        return StepTimes::Role::kStarts;
      case Kind::kWait:
      case Kind::kFinish:
        return StepTimes::Role::kWaits;
      default:
        return StepTimes::Role::kComputes;
    }
  }
};

// Instructions that are recorded as one, or that the host must walk.
struct Executor::Part {
  size_t begin = 0, end = 0;  // of the graph's instructions
  bool is_recorded = false;   // from its second run on
  bool waits = false;         // for the host or for other ranks: the device has nothing to do as a rule
  std::unique_ptr<Device::Recording> recording;
};

struct Executor::BoundGraph {
  const graph::Graph* graph = nullptr;
  std::vector<Instruction> instructions;
  std::vector<int> inputs;  // indices in inputs() that its instructions take
  std::vector<Part> parts;
  bool is_timed = true;  // Its nodes are those of the first program's graph, by which a timer knows them.
  bool has_run = false;
};

// Binds the states and graphs of one program, the executor's `index`-th; those before it are bound.
class Executor::Binder {
 public:
  Binder(Executor& executor, size_t index)
      : executor_(executor), index_(index), bound_(executor.programs_[index]), program_(*bound_.program) {}
  absl::Status Bind();

 private:
  bool is_first() const { return index_ == 0; }
  // Of another program: that it goes with the first one.
  absl::Status CheckCalls() const;
  absl::Status CheckState(const graph::State& state) const;
  absl::Status CheckInputs() const;
  absl::Status BindStates();
  absl::Status BindCalls();
  absl::StatusOr<BoundGraph*> BindGraph(const graph::Graph& graph, int64_t micro_batch);
  // As graph::CutForCapture says, and where waits begin and end; on a CPU one part, which is not recorded.
  void CutIntoParts(BoundGraph& bound) const;
  // This micro-batch's copy of a state.
  int64_t SlotOf(const graph::State& state) const { return micro_batch_ % state.slots; }
  // By a table from the kind of the op to one of the functions below; nodes that compute become requests for kernels.
  struct Binding;
  absl::Status BindNode(const graph::Graph& graph, int index, BoundGraph& bound);
  absl::Status BindInput(Binding& binding);
  absl::Status BindOutput(Binding& binding);
  absl::Status BindReturned(Binding& binding);
  absl::Status BindRead(Binding& binding);
  absl::Status BindStore(Binding& binding);
  absl::Status BindCollectiveNode(Binding& binding);
  absl::Status BindMessage(Binding& binding);  // send, recv
  absl::Status BindFinish(Binding& binding);
  absl::Status BindWait(Binding& binding);
  absl::Status BindSlice(Binding& binding);
  absl::Status BindMask(Binding& binding);
  absl::Status BindKernel(Binding& binding);
  absl::Status PlaceResults(const graph::Graph& graph, const graph::Node& node);
  // Where the state lies that `node` reads or stores. Errors: InvalidArgument when `value` has another type.
  absl::StatusOr<kernels::TensorView> PlaceOfState(const graph::Node& node, const kernels::TensorView& value) const;
  // The message of a send, recv or finish; they share it.
  absl::StatusOr<std::shared_ptr<UnderWay>> MessageOf(const graph::Node& node);
  // Makes the instructions' kernels of their requests; nodes that the device does in one call become one instruction.
  absl::Status PrepareKernels(BoundGraph& bound);
  absl::StatusOr<const void*> KeepOnDevice(const std::vector<char>& bytes);
  absl::StatusOr<kernels::TensorView> ViewOf(const graph::TensorType& type, char* data) const;
  // With an arena the planned place, in a stash this micro-batch's copy of it; else new memory.
  absl::StatusOr<char*> Memory(int64_t offset, int64_t bytes);

  Executor& executor_;
  const size_t index_;
  BoundProgram& bound_;
  const graph::Program& program_;
  std::map<std::string, const graph::State*> states_;              // By name.
  std::map<int64_t, const graph::State*> stashes_;                 // By offset, those with several copies.
  int64_t micro_batch_ = 0;                                        // Of the call being bound.
  std::vector<kernels::TensorView> views_;                         // Of the values of the graph being bound.
  std::vector<std::shared_ptr<CollectiveQueue::Ticket>> tickets_;  // By value: the collective under way that makes it.
  std::map<std::pair<int64_t, int64_t>, std::shared_ptr<UnderWay>> messages_;  // By channel and slot.
  std::vector<KernelRequest> requests_;                                        // Of the graph being bound, in order.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BOUND_GRAPH_H_
