// Trainings with the kernels of a device, against the same with those of the CPU.
#ifndef TACC_TESTS_EXECUTION_TRAINING_RUN_H_
#define TACC_TESTS_EXECUTION_TRAINING_RUN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "tests/ranks/in_process_ranks.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// A short training on random rows, of whose targets one in five is ignored, so that ranks hold different counts.
struct RandomTraining {
  int64_t global_batch = 0, seq_len = 0, vocabulary = 0;
  int64_t num_steps = 4;
  int64_t traced_step = -1;  // Of these, from 0.
};

// What it leaves.
struct TrainingRun {
  std::vector<double> losses, norms;
  double eval_loss = 0;
  std::map<std::string, std::vector<float>> weights;  // Logical.
  std::vector<int64_t> highest_touched;               // By rank; of planned memory.
  std::vector<int64_t> num_replays;                   // By rank; of a simulated device.
  std::string trace;                                  // Of the traced step.
};

// Trains from random weights and evaluates. `kernels` null: those of the CPU. Errors: InProcessRanks's.
absl::StatusOr<TrainingRun> RunTraining(const RandomTraining& training, const std::vector<graph::Program>& stages,
                                        const graph::OpTable& ops, InProcessRanks::Memory memory, uint64_t seed = 7,
                                        const KernelTable* kernels = nullptr);

// Losses and norms relative, weights absolute.
struct RunTolerance {
  double losses = 0, norms = 0, weights = 0;
};
// Expects each loss, norm, weight and the held-out loss of a run near those of another.
void ExpectNear(const TrainingRun& run, const TrainingRun& wanted, const RunTolerance& tolerance);

// How far runs are from others, pair by pair: root mean squares over all steps, elements and pairs.
RunTolerance Deviation(const std::vector<TrainingRun>& runs, const std::vector<TrainingRun>& from);

}  // namespace tacc::worker

#endif  // TACC_TESTS_EXECUTION_TRAINING_RUN_H_
