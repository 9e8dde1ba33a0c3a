// Ranks as threads of one process that train a compiled program.
#ifndef TACC_TESTS_RANKS_IN_PROCESS_RANKS_H_
#define TACC_TESTS_RANKS_IN_PROCESS_RANKS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "tests/ranks/counting_transport.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// A micro-batch of the whole job: `tokens` and `targets` (-1: none) are [rows, length], row-major.
struct MicroBatch {
  int64_t first_sample = 0;  // index of the first row in the global batch
  int64_t rows = 0;
  int64_t length = 0;
  std::vector<int32_t> tokens, targets;
};
// Makes a micro-batch. Called by all ranks, from their own threads.
using BatchSource = std::function<MicroBatch(int64_t step, int64_t micro_batch)>;

// What the steps of a run put out: of each output of the program its values, in the order of the steps.
struct TrainingLog {
  std::map<std::string, std::vector<double>> outputs;

  const std::vector<double>& losses() const { return outputs.at("loss"); }
  const std::vector<double>& norms() const { return outputs.at("grad_norm"); }
};

// The ranks of a compiled job as threads of this process: real kernels, executors, collectives and checkpoints,
// messages in memory. For tests. Not thread-safe: each method starts the ranks' threads and waits for them. Errors are
// those of the first rank that has one.
class InProcessRanks {
 public:
  // kOwn: every value has memory of its own instead of its place in the planned arena. kSimulatedDevice: planned, on a
  // device that does nothing before it is waited for and whose memory the host cannot touch, two steps in flight.
  // kSimulatedGpu: on one whose collectives and messages are queued, and recorded, as on GPUs; InOrder: with
  // train.deterministic.
  enum class Memory { kPlanned, kOwn, kSimulatedDevice, kSimulatedGpu, kSimulatedGpuInOrder };

  // Binds each rank to the program of its stage. `stages`, `ops` and `kernels` (null: those of the CPU) must outlive
  // the object. Arenas are poisoned first. `ranks_a_machine` in order; 0: all are on one.
  static absl::StatusOr<std::unique_ptr<InProcessRanks>> Create(const std::vector<graph::Program>* stages,
                                                                const graph::OpTable* ops, Memory memory,
                                                                const KernelTable* kernels = nullptr,
                                                                int ranks_a_machine = 0);
  ~InProcessRanks();

  // Micro-batches of a step.
  int64_t num_micro_batches() const;

  // Weights random by their `init`, optimizer states zero. What padding states have is poisoned: it has no value.
  absl::Status Initialize(uint64_t seed);
  // Writes the states as a checkpoint in `directory`, which is made if need be, and returns its path.
  absl::StatusOr<std::string> Save(const std::string& directory, int64_t step) const;
  // Weights and optimizer states of the checkpoint at `path`, by whatever layout it was written.
  absl::Status Load(const std::string& path);

  // Trains `num_steps` steps, from `first_step` on, and adds what they put out to `log`. FailedPrecondition: an update
  // was skipped.
  absl::Status Train(int64_t first_step, int64_t num_steps, const BatchSource& batches, TrainingLog* log);
  // Trains the step as Train does, alone and timed, and returns its trace with all ranks (graph/trace/step_trace.h).
  absl::StatusOr<std::string> TraceStep(int64_t step, const BatchSource& batches, TrainingLog* log);
  // The sum of the held-out losses of as many micro-batches as a step has; the source gets `step`.
  absl::StatusOr<double> Evaluate(int64_t step, const BatchSource& batches);

  // By rank: parts of graphs that were replayed from recordings. For simulated devices.
  std::vector<int64_t> NumReplays() const;

  // The logical weights, by state.
  std::map<std::string, std::vector<float>> Weights() const;
  // By rank: bytes of the arena up to the last one that was ever written. For planned memory.
  std::vector<int64_t> HighestTouched() const;
  // By rank: bytes that it has given to its transport to send, since Create.
  struct Sent {
    int64_t bytes = 0;
    std::vector<int64_t> to;  // of these: to each rank
  };
  std::vector<Sent> SentBytes() const;
  // By rank: bytes that it has packed and unpacked for its collectives. For simulated GPUs.
  std::vector<int64_t> PackedBytes() const;

 private:
  class Rank;

  explicit InProcessRanks(const graph::OpTable* ops);
  absl::Status ForEachRank(const std::function<absl::Status(Rank&)>& run) const;

  const graph::OpTable& ops_;
  const std::unique_ptr<KernelTable> cpu_kernels_;
  std::vector<std::unique_ptr<CountingTransport>> transports_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// The program of a rank, one of `stages`.
const graph::Program& ProgramOf(const std::vector<graph::Program>& stages, int64_t rank);

}  // namespace tacc::worker

#endif  // TACC_TESTS_RANKS_IN_PROCESS_RANKS_H_
