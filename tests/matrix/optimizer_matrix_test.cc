// Each optimizer in layouts against one rank, run as the matrix runs its layouts; checkpoints of its states that other
// layouts go on from, and that the same layout goes on from to the bit.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"
#include "tests/matrix/row.h"

namespace tacc::matrix {
namespace {

constexpr int64_t kNumSteps = 8, kHalf = kNumSteps / 2;

struct Optimizer {
  const char* optim;
  double momentum, learning_rate;
};

// Lion is not among them: where a mean of gradients is all but zero the order of its sums decides the sign, and so the
// whole step of a weight (tests/layouts compares it in double precision).
constexpr Optimizer kOptimizers[] = {
    {"adam", 0, 3e-4}, {"sgd", 0, 0.1}, {"sgd", 0.9, 0.02}, {"muon", 0, 3e-3}, {"adafactor", 0, 3e-4}};

std::vector<Layout> LayoutsOf(const std::string& family) {
  constexpr graph::PipelineSchedule kInterleaved = graph::PipelineSchedule::kInterleaved;
  std::vector<Layout> layouts = {
      {.dp = 2}, {.fsdp = 4, .zero_stage = 1},        {.fsdp = 2, .zero_stage = 2}, {.fsdp = 4},
      {.tp = 4}, {.pp = 2, .schedule = kInterleaved}, {.pp = 2, .fsdp = 2, .tp = 2}};
  if (family == "mixtral") {
    layouts.push_back({.ep = 4});
    layouts.push_back({.fsdp = 2, .ep = 2, .tp = 2});
  }
  return layouts;
}

Job JobOf(const std::string& family, const Optimizer& optimizer) {
  Job job = {.family = family, .num_micro_batches = 4};
  job.optim = optimizer.optim;
  job.momentum = optimizer.momentum;
  job.learning_rate = optimizer.learning_rate;
  return job;
}

class OptimizerMatrixTest : public testing::TestWithParam<const char*> {};

TEST_P(OptimizerMatrixTest, TrainsAsOnOneRankAndResumesOnAnyLayout) {
  const graph::OpTable ops;
  const std::vector<Layout> layouts = LayoutsOf(GetParam());
  for (const Optimizer& optimizer : kOptimizers) {
    const Job job = JobOf(GetParam(), optimizer);
    const TestDirectory directory;
    const absl::StatusOr<graph::Compiled> one = CompileJob(job, {}, ops);
    ASSERT_TRUE(one.ok()) << one.status();
    const absl::StatusOr<TrainingRun> wanted = Train(job, one->stages, ops, 0, kNumSteps);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    const std::vector<double>& losses = wanted->log.losses();
    EXPECT_LE(losses.back(), 0.99 * losses.front()) << optimizer.optim;
    std::string checkpoint;
    for (size_t i = 0; i < layouts.size(); ++i) {
      const Layout& layout = layouts[i];
      SCOPED_TRACE(absl::StrCat(optimizer.optim, " ", optimizer.momentum, " ", layout.Name()));
      const absl::StatusOr<graph::Compiled> many = CompileJob(job, layout, ops);
      ASSERT_TRUE(many.ok()) << many.status();
      // The first half, and a checkpoint, from which the next layout goes on.
      const absl::StatusOr<TrainingRun> first =
          Train(job, many->stages, ops, 0, kHalf, "", directory.File(absl::StrCat("layout", i)));
      ASSERT_TRUE(first.ok()) << first.status();
      EXPECT_LE(Difference(first->log.losses(), {losses.begin(), losses.begin() + kHalf}), LossTolerance(layout));
      if (!checkpoint.empty()) {
        const absl::StatusOr<TrainingRun> second = Train(job, many->stages, ops, kHalf, kNumSteps, checkpoint);
        ASSERT_TRUE(second.ok()) << second.status();
        EXPECT_LE(Difference(second->log.losses(), {losses.begin() + kHalf, losses.end()}), LossTolerance(layout));
      }
      checkpoint = first->checkpoint;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, OptimizerMatrixTest, testing::Values("llama", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

TEST(OptimizerCheckpointTest, GoesOnToTheBit) {
  const graph::OpTable ops;
  for (const Optimizer& optimizer : {Optimizer{"lion", 0, 3e-4}, Optimizer{"muon", 0, 3e-3},
                                     Optimizer{"adafactor", 0, 3e-4}, Optimizer{"sgd", 0.9, 0.02}}) {
    SCOPED_TRACE(optimizer.optim);
    const Job job = JobOf("llama", optimizer);
    const TestDirectory directory;
    const absl::StatusOr<graph::Compiled> compiled = CompileJob(job, {.fsdp = 2}, ops);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    const absl::StatusOr<TrainingRun> whole = Train(job, compiled->stages, ops, 0, kNumSteps);
    const absl::StatusOr<TrainingRun> first =
        Train(job, compiled->stages, ops, 0, kHalf, "", directory.File("checkpoint"));
    ASSERT_TRUE(whole.ok() && first.ok()) << whole.status() << first.status();
    const absl::StatusOr<TrainingRun> second = Train(job, compiled->stages, ops, kHalf, kNumSteps, first->checkpoint);
    ASSERT_TRUE(second.ok()) << second.status();
    const std::vector<double>& losses = whole->log.losses();
    EXPECT_EQ(second->log.losses(), std::vector<double>(losses.begin() + kHalf, losses.end()));
  }
}

TEST(OptimizerCheckpointTest, OfAnotherOptimizerIsRefused) {
  const graph::OpTable ops;
  const TestDirectory directory;
  const Job momentum = JobOf("llama", {"sgd", 0.9, 0.02});
  const absl::StatusOr<graph::Compiled> compiled = CompileJob(momentum, {}, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const absl::StatusOr<TrainingRun> run = Train(momentum, compiled->stages, ops, 0, 1, "", directory.File("run"));
  ASSERT_TRUE(run.ok()) << run.status();
  // One that wants other states, and one that has none.
  for (const Optimizer& other : {Optimizer{"adamw", 0, 3e-4}, Optimizer{"sgd", 0, 0.02}}) {
    const absl::StatusOr<graph::Compiled> another = CompileJob(JobOf("llama", other), {}, ops);
    ASSERT_TRUE(another.ok()) << another.status();
    const absl::Status refused = LoadAndSave(another->stages, ops, run->checkpoint, 1,
                                             directory.File(absl::StrCat("other", other.learning_rate)))
                                     .status();
    EXPECT_TRUE(absl::StrContains(refused.message(), "it was written by a job with another optimizer (train.optim"))
        << refused;
  }
}

}  // namespace
}  // namespace tacc::matrix
