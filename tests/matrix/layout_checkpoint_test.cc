// Checkpoints between layouts: every layout writes one after half of the steps, and others go on from it: the losses
// are those of one rank that never stopped. Written and read as ranks of jobs do.
#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"
#include "tests/matrix/row.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/rectangle.h"

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

// All that the checkpoint at `path` holds, by tensor.
std::map<std::string, std::vector<float>> StatesOf(const std::string& path) {
  const auto checkpoint = worker::Checkpoint::Open(path);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::map<std::string, std::vector<float>> states;
  for (const auto& [name, tensor] : (*checkpoint)->manifest().tensors) {
    EXPECT_EQ(tensor.dtype, "F32") << name;
    std::vector<float>& values = states[name];
    values.resize(*worker::NumElements(tensor.shape));
    EXPECT_TRUE((*checkpoint)->Read(name, worker::WholeTensor(tensor.SlicedShape()), values.data()).ok()) << name;
  }
  return states;
}

bool SameBits(const std::map<std::string, std::vector<float>>& a, const std::map<std::string, std::vector<float>>& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [name, values] : a) {
    const auto other = b.find(name);
    if (other == b.end() || other->second.size() != values.size()) return false;
    if (std::memcmp(values.data(), other->second.data(), values.size() * sizeof(float)) != 0) return false;
  }
  return true;
}

// Every ordered pair: what a layout has loaded of another's checkpoint and writes again is that checkpoint to the bit.
// (One dense family stands for the others, whose weights are cut in the same ways.) Which of them also go on: each
// resumes and is resumed by its neighbours at several distances, so that kinds meet that have little in common.
TEST_P(CheckpointTest, AnyLayoutResumesAnyOther) {
  const std::string family = GetParam();
  const std::vector<Layout> layouts = LayoutsOf(family);
  const graph::OpTable ops;
  const TestDirectory directory;
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
  const size_t num_sources = family == "llama" || family == "mixtral" ? layouts.size() : 0;
  for (size_t from = 0; from < num_sources; ++from) {
    const std::map<std::string, std::vector<float>> states = StatesOf(checkpoints[from]);
    for (size_t to = 0; to < layouts.size(); ++to) {
      SCOPED_TRACE(absl::StrCat(layouts[from].Name(), " loaded by ", layouts[to].Name()));
      const std::string again = directory.File("again");
      const absl::StatusOr<std::string> written = LoadAndSave(programs[to], ops, checkpoints[from], kHalf, again);
      ASSERT_TRUE(written.ok()) << written.status();
      EXPECT_TRUE(SameBits(StatesOf(*written), states));
      ASSERT_TRUE(worker::RemoveTree(again).ok());
    }
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

// Of 8 heads of 8 over 16 ranks the first two dims are one. What has as many rows, but other heads, is another model's.
TEST(MergedCheckpointTest, OfOtherHeadsIsRefused) {
  const graph::OpTable ops;
  const TestDirectory directory;
  const Job job = {.family = "llama", .num_layers = 1, .num_micro_batches = 1, .global_batch = 16};
  absl::StatusOr<graph::Compiled> compiled = CompileJob(job, {.fsdp = 16}, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  std::vector<graph::Program> programs = std::move(compiled->stages);
  const absl::StatusOr<TrainingRun> run = Train(job, programs, ops, 0, 1, "", directory.File("run"));
  ASSERT_TRUE(run.ok()) << run.status();
  const auto checkpoint = worker::Checkpoint::Open(run->checkpoint);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  int num_merged = 0;
  for (const auto& [name, tensor] : (*checkpoint)->manifest().tensors) num_merged += tensor.merged_dims > 1 ? 1 : 0;
  EXPECT_GT(num_merged, 0);
  EXPECT_TRUE(LoadAndSave(programs, ops, run->checkpoint, 1, directory.File("same")).ok());
  for (graph::State& state : programs[0].states) {
    if (state.merged_from == graph::Dims{8, 8, 64}) state.merged_from = {4, 16, 64};
  }
  const absl::Status refused = LoadAndSave(programs, ops, run->checkpoint, 1, directory.File("other")).status();
  EXPECT_TRUE(absl::StrContains(refused.message(), "is [8,8,64], the model's is [4,16,64]")) << refused;
}

INSTANTIATE_TEST_SUITE_P(Models, CheckpointTest, testing::Values("llama", "qwen3", "bloom", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
