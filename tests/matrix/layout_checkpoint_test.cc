// Checkpoints between layouts: every layout writes one after half of the steps, and others go on from it: the losses
// are those of one rank that never stopped. Written and read as ranks of jobs do.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/matrix/row.h"
#include "worker/checkpoint/test_directory.h"

namespace tacc::matrix {
namespace {

constexpr int64_t kHalf = kSteps / 2;

constexpr graph::PipelineSchedule kInterleaved = graph::PipelineSchedule::kInterleaved,
                                  kZeroBubble = graph::PipelineSchedule::kZeroBubble;

std::vector<Layout> LayoutsOf(const std::string& family) {
  std::vector<Layout> layouts = {
      {},
      {.dp = 4},
      {.fsdp = 4, .zero_stage = 1},
      {.fsdp = 4, .zero_stage = 2},
      {.fsdp = 4},
      {.tp = 4},
      {.cp = 4},
      {.sp = 4},
      {.pp = 4},
      {.pp = 2, .dp = 2, .schedule = kInterleaved},
      {.pp = 4, .schedule = kZeroBubble},
      {.fsdp = 2, .tp = 2},
      {.pp = 2, .fsdp = 2, .tp = 2},
      {.dp = 2, .cp = 2, .tp = 2},
  };
  if (family != "mixtral") return layouts;
  layouts.push_back({.ep = 4});
  layouts.push_back({.fsdp = 2, .ep = 2, .tp = 2});
  layouts.push_back({.pp = 2, .ep = 2});
  return layouts;
}

// The micro-batches of all: those of the pipelines.
Job JobOf(const std::string& family) { return {.family = family, .num_micro_batches = 4}; }

class CheckpointTest : public testing::TestWithParam<const char*> {};

// The losses of the steps from `first` on against one rank's.
void ExpectEqual(const absl::StatusOr<TrainingRun>& run, const Reference& one, int64_t first, double tolerance) {
  ASSERT_TRUE(run.ok()) << run.status();
  const auto begin = one.log.losses().begin() + first;
  EXPECT_LE(Difference(run->log.losses(), {begin, begin + kHalf}), tolerance);
}

// Which of the layouts resume which: each resumes and is resumed by its neighbours at several distances, so that kinds
// meet that have little in common.
TEST_P(CheckpointTest, AnyLayoutResumesAnyOther) {
  const std::string family = GetParam();
  const std::vector<Layout> layouts = LayoutsOf(family);
  const graph::OpTable ops;
  const worker::TestDirectory directory;
  References references(ops);
  const Job job = JobOf(family);
  const absl::StatusOr<const Reference*> reference = references.Of(job);
  ASSERT_TRUE(reference.ok()) << reference.status();

  std::vector<std::vector<graph::Program>> programs;
  std::vector<std::string> checkpoints;
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.Name());
    absl::StatusOr<graph::Compiled> compiled = CompileJob(job, layout, ops);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    programs.push_back(std::move(compiled->stages));
    const absl::StatusOr<TrainingRun> run =
        Train(job, programs.back(), ops, 0, kHalf, "", directory.File(absl::StrCat("layout", checkpoints.size())));
    ExpectEqual(run, **reference, 0, LossTolerance(layout));
    ASSERT_TRUE(run.ok());
    checkpoints.push_back(run->checkpoint);
  }
  const std::vector<size_t> distances = family == "llama" ? std::vector<size_t>{1, 4, 9} : std::vector<size_t>{5};
  for (size_t distance : distances) {
    for (size_t to = 0; to < layouts.size(); ++to) {
      const size_t from = (to + distance) % layouts.size();
      SCOPED_TRACE(absl::StrCat(layouts[from].Name(), " resumed by ", layouts[to].Name()));
      ExpectEqual(Train(job, programs[to], ops, kHalf, kSteps, checkpoints[from]), **reference, kHalf,
                  std::max(LossTolerance(layouts[from]), LossTolerance(layouts[to])));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CheckpointTest, testing::Values("llama", "qwen3", "bloom", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
