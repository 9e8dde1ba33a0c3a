#include "tests/execution/training_run.h"

#include <cmath>
#include <memory>
#include <random>

#include "graph/ir/status_macros.h"
#include "gtest/gtest.h"

namespace tacc::worker {
namespace {

constexpr int64_t kEvalStep = 99;

// Rows [first, first + rows) of the global batch of `step`.
MicroBatch MakeBatch(const RandomTraining& training, int64_t step, int64_t first, int64_t rows) {
  MicroBatch batch{first, rows, training.seq_len, {}, {}};
  for (int64_t r = first; r < first + rows; ++r) {
    std::mt19937 random(static_cast<uint32_t>(step * 1000 + r));
    for (int64_t s = 0; s < training.seq_len; ++s) {
      batch.tokens.push_back(static_cast<int32_t>(random() % training.vocabulary));
      const uint32_t target = random();
      batch.targets.push_back(target % 5 == 0 ? -1 : static_cast<int32_t>(target % training.vocabulary));
    }
  }
  return batch;
}

}  // namespace

absl::StatusOr<TrainingRun> RunTraining(const RandomTraining& training, const std::vector<graph::Program>& stages,
                                        const graph::OpTable& ops, InProcessRanks::Memory memory, uint64_t seed,
                                        const KernelTable* kernels) {
  TACC_ASSIGN_OR_RETURN(const std::unique_ptr<InProcessRanks> ranks,
                        InProcessRanks::Create(&stages, &ops, memory, kernels));
  const int64_t rows = training.global_batch / ranks->num_micro_batches();
  const BatchSource batches = [&training, rows](int64_t step, int64_t m) {
    return MakeBatch(training, step, m * rows, rows);
  };
  TrainingLog log;
  TrainingRun run;
  TACC_RETURN_IF_ERROR(ranks->Initialize(seed));
  int64_t step = 0;
  if (training.traced_step >= 0) {
    TACC_RETURN_IF_ERROR(ranks->Train(0, training.traced_step, batches, &log));
    TACC_ASSIGN_OR_RETURN(run.trace, ranks->TraceStep(training.traced_step, batches, &log));
    step = training.traced_step + 1;
  }
  TACC_RETURN_IF_ERROR(ranks->Train(step, training.num_steps - step, batches, &log));
  TACC_ASSIGN_OR_RETURN(run.eval_loss, ranks->Evaluate(kEvalStep, batches));
  run.losses = log.losses();
  run.norms = log.norms();
  run.weights = ranks->Weights();
  if (memory != InProcessRanks::Memory::kPlanned && memory != InProcessRanks::Memory::kOwn)
    run.num_replays = ranks->NumReplays();
  if (memory == InProcessRanks::Memory::kPlanned) run.highest_touched = ranks->HighestTouched();
  return run;
}

void ExpectNear(const TrainingRun& run, const TrainingRun& wanted, const RunTolerance& tolerance) {
  ASSERT_EQ(run.losses.size(), wanted.losses.size());
  for (size_t step = 0; step < wanted.losses.size(); ++step) {
    EXPECT_NEAR(run.losses[step], wanted.losses[step], tolerance.losses * wanted.losses[step]) << step;
    EXPECT_NEAR(run.norms[step], wanted.norms[step], tolerance.norms * wanted.norms[step]) << step;
  }
  EXPECT_NEAR(run.eval_loss, wanted.eval_loss, tolerance.losses * wanted.eval_loss);
  ASSERT_EQ(run.weights.size(), wanted.weights.size());
  for (const auto& [name, weight] : wanted.weights) {
    ASSERT_EQ(run.weights.count(name), 1u) << name;
    const std::vector<float>& other = run.weights.at(name);
    ASSERT_EQ(other.size(), weight.size()) << name;
    for (size_t i = 0; i < weight.size(); ++i)
      ASSERT_NEAR(other[i], weight[i], tolerance.weights) << name << "[" << i << "]";
  }
}

RunTolerance Deviation(const std::vector<TrainingRun>& runs, const std::vector<TrainingRun>& from) {
  RunTolerance sum;
  int64_t num_losses = 0, num_weights = 0;
  const auto square = [](double x) { return x * x; };
  for (size_t i = 0; i < from.size(); ++i) {
    for (size_t step = 0; step < from[i].losses.size(); ++step) {
      sum.losses += square(runs.at(i).losses.at(step) / from[i].losses[step] - 1);
      sum.norms += square(runs[i].norms.at(step) / from[i].norms[step] - 1);
      ++num_losses;
    }
    for (const auto& [name, weight] : from[i].weights) {
      const std::vector<float>& other = runs[i].weights.at(name);
      for (size_t k = 0; k < weight.size(); ++k) sum.weights += square(other.at(k) - weight[k]);
      num_weights += static_cast<int64_t>(weight.size());
    }
  }
  return {std::sqrt(sum.losses / static_cast<double>(num_losses)),
          std::sqrt(sum.norms / static_cast<double>(num_losses)),
          std::sqrt(sum.weights / static_cast<double>(num_weights))};
}

}  // namespace tacc::worker
