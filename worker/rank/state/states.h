// The states of a rank: how they begin, and how they get into and out of checkpoints.
#ifndef TACC_WORKER_RANK_STATE_STATES_H_
#define TACC_WORKER_RANK_STATE_STATES_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "kernels/tensor.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/writer.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// A state's memory on this rank, by name (Executor::state).
using StateViews = std::function<kernels::TensorView(const std::string&)>;

// What weights begin with: those of the model's files, or random.
struct InitialWeights {
  const ModelWeights* model = nullptr;    // null: random
  const ModelWeights* adapter = nullptr;  // an adapter's folder; null: new adapters
  uint64_t seed = 0;                      // of what is random
};

// The states of one rank of a program: how they begin, and how they get into and out of checkpoints. Any layout reads
// what any other wrote: a rank reads its own rectangle of each logical tensor.
class RankStates {
 public:
  // `program` and `device`, whose memory the states' is, must outlive the object. `progress`, if set, is called before
  // each state that is filled.
  RankStates(const graph::Program* program, int64_t rank, Device* device, StateViews views,
             std::function<void()> progress = nullptr)
      : program_(*program), rank_(rank), device_(*device), views_(std::move(views)), progress_(std::move(progress)) {}

  // Weights from the model's files, or random by each state's `init`, keyed by seed, name and logical index: the same
  // for any layout. Adapters, and what is trained beside them, from the adapter's folder where there is one; new ones
  // are random in any case. The loss scale by its `init`. Copies are cast from the weights, all else becomes zero.
  // Padding becomes zero. InvalidArgument, NotFound: a tensor is missing or has another shape; both sides are named.
  absl::Status Initialize(const InitialWeights& initial);

  // Weights, optimizer states and, where it has them, the loss scale's from a checkpoint; the rest as Initialize.
  // Frozen weights are the model's, of which a checkpoint has none. InvalidArgument: the checkpoint's tensors are not
  // the program's.
  absl::Status Load(const Checkpoint& checkpoint, const InitialWeights& initial);

  // What this rank writes: weights and optimizer states of which it is the first replica, without padding; of frozen
  // weights only those that were random.
  struct Shard {
    std::vector<ShardTensor> tensors;
    std::deque<std::vector<char>> copies;  // Of what is not dense in the states' own memory.
  };
  // `tensors` point into the states' own memory, where that is the host's, or into `copies`.
  absl::StatusOr<Shard> MakeShard() const;
  // Bytes of all tensors of the shard.
  int64_t ShardBytes() const;
  // The shard, all of it copied to `memory` of ShardBytes(): the states may change while it is written.
  absl::StatusOr<Shard> MakeSnapshot(char* memory) const;

  // Its part of one state of the shard; nothing where that is another rank's, or of none.
  absl::StatusOr<Shard> MakePart(const std::string& name) const;
  // The shard without data.
  std::vector<ShardTensor> DescribeShard() const;

  // Puts tensors of a folder into the states that they are named as ("weights/NAME"); the others stay as they are.
  // CheckTensors says before it why that cannot be: InvalidArgument, NotFound, with a tensor's name.
  absl::Status CheckTensors(const ModelWeights& tensors) const;
  absl::Status LoadTensors(const ModelWeights& tensors);

  // The value of a state without dims.
  absl::StatusOr<double> ReadScalar(const std::string& name) const;

  // Whether every number of a state is finite.
  absl::StatusOr<bool> IsFinite(const std::string& name) const;

 private:
  // Reads a rectangle of a state's logical tensor, seen as of these dims, as fp32, dense.
  using ReadFloat = std::function<absl::Status(const graph::State& state, const graph::Dims& dims,
                                               const Rectangle& rectangle, float* out)>;

  // A weight, or the loss scale, as it is at the start.
  static absl::Status ReadInitial(const graph::State& state, const graph::Dims& dims, const Rectangle& wanted,
                                  const InitialWeights& initial, float* out);
  static absl::Status ReadRandom(const graph::State& weight, const graph::Dims& dims, const Rectangle& wanted,
                                 uint64_t seed, float* out);
  Rectangle RectangleOf(const graph::State& state) const;
  // InvalidArgument: the checkpoint has states of another optimizer.
  absl::Status CheckOptimizer(const Checkpoint& checkpoint) const;
  bool IsSaved(const graph::State& state) const;
  bool IsFirstReplica(const graph::State& state) const;
  void ClearAll();
  // A state's local part in host memory: its own, or a copy that it is filled from and that WriteBack puts in its
  // place.
  class Content;
  // Queues, or does, a copy of the logical part of a local tensor, dense.
  absl::Status CopyOut(const kernels::TensorView& place, const Rectangle& logical, char* to) const;
  // Fills this rank's part of `state` with the values of `source`.
  absl::Status Fill(const graph::State& state, const graph::State& source, const ReadFloat& read);
  absl::Status FillFromWeights(
      graph::StateKind kind, const ReadFloat& read,
      absl::FunctionRef<bool(const graph::State& weight)> is_wanted = [](const graph::State&) { return true; });

  const graph::Program& program_;
  int64_t rank_;
  Device& device_;
  StateViews views_;
  std::function<void()> progress_;
  bool saves_frozen_ = true;  // They are in no model's files.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_STATE_STATES_H_
