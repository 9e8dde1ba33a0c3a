// Trainings of adapters, and of a part of a model's parameters, in layouts against one rank, run as the matrix runs its
// layouts: the same losses; gradients and optimizer states of nothing but what is trained; checkpoints that any other
// layout resumes.
#include <cmath>
#include <filesystem>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "gtest/gtest.h"
#include "tests/matrix/row.h"
#include "worker/checkpoint/reader.h"

namespace tacc::matrix {
namespace {

constexpr int64_t kNumSteps = 8;

std::vector<Layout> LayoutsOf(const std::string& family) {
  std::vector<Layout> layouts = {
      {.dp = 2},
      {.fsdp = 2},
      {.fsdp = 2, .zero_stage = 1},
      {.fsdp = 2, .zero_stage = 2},
      {.tp = 2},
      {.tp = 4},
      {.cp = 2},
      {.sp = 2},
      {.pp = 2},
      {.pp = 2, .schedule = graph::PipelineSchedule::kInterleaved},
      {.pp = 2, .schedule = graph::PipelineSchedule::kZeroBubble},
      {.fsdp = 2, .gc_layers = 2},
      {.fsdp = 2, .tp = 2},
      {.pp = 2, .fsdp = 2, .tp = 2},
  };
  if (family == "mixtral") {
    layouts.push_back({.ep = 2});
    layouts.push_back({.fsdp = 2, .ep = 2, .tp = 2});
  }
  return layouts;
}

Job LoraJob(const std::string& family, const Layout& layout) {
  Job job = JobFor(family, layout);
  job.lora = true;
  job.learning_rate = 1e-2;  // what begins with zeros is to count
  return job;
}

absl::StatusOr<TrainingRun> TrainIn(const Job& job, const Layout& layout, const graph::OpTable& ops,
                                    const std::string& directory = "") {
  const absl::StatusOr<graph::Compiled> compiled = CompileJob(job, layout, ops);
  if (!compiled.ok()) return compiled.status();
  return Train(job, compiled->stages, ops, 0, kNumSteps, "", directory);
}

void ExpectSameLosses(const Job& job, const Layout& layout, const graph::OpTable& ops) {
  const absl::StatusOr<TrainingRun> one = TrainIn(job, {}, ops), many = TrainIn(job, layout, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(many.ok()) << many.status();
  const std::vector<double>& losses = one->log.losses();
  EXPECT_LE(Difference(many->log.losses(), losses), LossTolerance(layout));
  // Equality of runs that learn nothing would prove little.
  EXPECT_LE(losses.back(), 0.98 * losses.front());
}

class FinetuneTest : public testing::TestWithParam<const char*> {};

TEST_P(FinetuneTest, AdaptersTrainAsOnOneRank) {
  const graph::OpTable ops;
  for (const Layout& layout : LayoutsOf(GetParam())) {
    SCOPED_TRACE(absl::StrCat(GetParam(), " ", layout.Name()));
    ExpectSameLosses(LoraJob(GetParam(), layout), layout, ops);
  }
}

// The layers before the first one that is trained, on a stage of their own too, have no backward.
TEST_P(FinetuneTest, PartsOfTheModelTrainAsOnOneRank) {
  const graph::OpTable ops;
  for (const Layout& layout : LayoutsOf(GetParam())) {
    Job job = JobFor(GetParam(), layout);
    job.learning_rate = 1e-3;
    const std::string first = SpecOf(job)->LayerPath(0), second = SpecOf(job)->LayerPath(1);
    job.freeze = {absl::StrCat(SpecOf(job)->names.embedding, ".*"), absl::StrCat(first, ".*"),
                  absl::StrCat(second, ".*"), "*norm*"};
    SCOPED_TRACE(absl::StrCat(GetParam(), " ", layout.Name()));
    ExpectSameLosses(job, layout, ops);
  }
}

struct StateBytes {
  int64_t adapters = 0, gradients = 0, moments = 0, copies = 0, frozen = 0;
};

StateBytes Count(const graph::Program& program) {
  StateBytes bytes;
  for (const graph::State& state : program.states) {
    if (state.kind == graph::StateKind::kGradient) bytes.gradients += state.type.bytes();
    if (state.kind == graph::StateKind::kOptimizer) bytes.moments += state.type.bytes();
    if (state.kind == graph::StateKind::kCopy) bytes.copies += state.type.bytes();
    if (state.kind != graph::StateKind::kWeight) continue;
    (state.role == graph::WeightRole::kFrozen ? bytes.frozen : bytes.adapters) += state.type.bytes();
  }
  return bytes;
}

// As planned: of adapters in fp32 their gradients, and twice that for moments; nothing of the base but its weights, in
// the type in which they are read.
TEST_P(FinetuneTest, OnlyAdaptersHaveGradientsAndMoments) {
  const graph::OpTable ops;
  for (const Layout& layout : {Layout{}, Layout{.fsdp = 2}, Layout{.tp = 2}, Layout{.pp = 2, .fsdp = 2, .tp = 2}}) {
    SCOPED_TRACE(absl::StrCat(GetParam(), " ", layout.Name()));
    Job job = LoraJob(GetParam(), layout), full = job;
    full.lora = false;
    for (const bool half : {false, true}) {
      job.half = full.half = half;
      const absl::StatusOr<graph::Compiled> compiled = CompileJob(job, layout, ops),
                                            whole = CompileJob(full, layout, ops);
      ASSERT_TRUE(compiled.ok()) << compiled.status();
      ASSERT_TRUE(whole.ok()) << whole.status();
      for (size_t stage = 0; stage < compiled->stages.size(); ++stage) {
        const StateBytes lora = Count(compiled->stages[stage]), all = Count(whole->stages[stage]);
        EXPECT_EQ(compiled->memory[stage].gradients_bytes, lora.gradients);
        EXPECT_EQ(compiled->memory[stage].optimizer_bytes, lora.moments);
        EXPECT_EQ(compiled->memory[stage].frozen_bytes, lora.frozen);
        EXPECT_EQ(lora.gradients, lora.adapters);
        EXPECT_EQ(lora.moments, 2 * lora.adapters);
        EXPECT_LE(lora.copies, lora.adapters / 2);
        if (half) {
          EXPECT_LE(static_cast<double>(lora.frozen), 0.6 * static_cast<double>(all.adapters));
        } else {
          EXPECT_EQ(lora.frozen, all.adapters);
        }
        EXPECT_LT(compiled->memory[stage].arena_bytes, whole->memory[stage].arena_bytes);
      }
    }
  }
}

// A checkpoint that any layout has written trains on in any other, with the data where it was.
TEST_P(FinetuneTest, AnotherLayoutResumes) {
  const graph::OpTable ops;
  const std::string root = absl::StrCat(testing::TempDir(), "/finetune_", GetParam());
  const Layout from = {.fsdp = 2, .tp = 2}, to = {.dp = 2};
  const Job job = LoraJob(GetParam(), from);
  const absl::StatusOr<TrainingRun> whole = TrainIn(job, {}, ops);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const absl::StatusOr<graph::Compiled> before = CompileJob(job, from, ops), after = CompileJob(job, to, ops);
  ASSERT_TRUE(before.ok()) << before.status();
  ASSERT_TRUE(after.ok()) << after.status();
  const auto first = Train(job, before->stages, ops, 0, kNumSteps / 2, "", root);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = Train(job, after->stages, ops, kNumSteps / 2, kNumSteps, first->checkpoint);
  ASSERT_TRUE(second.ok()) << second.status();
  const std::vector<double>& wanted = whole->log.losses();
  EXPECT_LE(Difference(second->log.losses(), {wanted.begin() + kNumSteps / 2, wanted.end()}), LossTolerance(from));
  std::filesystem::remove_all(root);
}

INSTANTIATE_TEST_SUITE_P(Models, FinetuneTest, testing::Values("llama", "bloom", "chatglm", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
