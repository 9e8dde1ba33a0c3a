// Gradient checkpointing (memory.gc): layouts whose layers compute their activations again against the same without,
// run as the matrix runs its layouts: the same bits in less memory. Prints a table, and leaves it in
// $TACC_TABLES.
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "tests/matrix/row.h"
#include "tests/matrix/table.h"

namespace tacc::matrix {
namespace {

constexpr int64_t kNumSteps = 6;

std::vector<Layout> LayoutsOf(const std::string& family) {
  std::vector<Layout> layouts = {
      {},
      {.fsdp = 2},
      {.fsdp = 2, .zero_stage = 2},
      {.tp = 2},
      {.cp = 2},
      {.sp = 2},
      {.pp = 2},
      {.pp = 2, .schedule = graph::PipelineSchedule::kInterleaved},
      {.pp = 2, .schedule = graph::PipelineSchedule::kZeroBubble},
  };
  if (family == "mixtral") {
    layouts.push_back({.ep = 2, .tp = 2});
  } else {
    layouts.push_back({.pp = 2, .fsdp = 2, .tp = 2});
  }
  return layouts;
}

double Sum(const std::vector<int64_t>& bytes) {
  return static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
}

class GcTest : public testing::TestWithParam<const char*> {};

TEST_P(GcTest, GivesTheSameBitsInLessMemory) {
  const std::string family = GetParam();
  const graph::OpTable ops;
  std::string table =
      absl::StrFormat("%-8s %-32s %5s  %s\n", "model", "layout", "ranks", "memory used, of that without gc");
  for (Layout layout : LayoutsOf(family)) {
    Job job = JobFor(family, layout);
    if (family == "bloom") job.dropout = 0.1;  // what is computed again draws the same masks
    const absl::StatusOr<graph::Compiled> kept = CompileJob(job, layout, ops);
    ASSERT_TRUE(kept.ok()) << kept.status();
    const absl::StatusOr<TrainingRun> wanted = Train(job, kept->stages, ops, 0, kNumSteps);
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    for (const int64_t gc_layers : {job.num_layers / 2, job.num_layers}) {
      layout.gc_layers = gc_layers;
      SCOPED_TRACE(absl::StrCat(family, " ", layout.Name()));
      const absl::StatusOr<graph::Compiled> again = CompileJob(job, layout, ops);
      ASSERT_TRUE(again.ok()) << again.status();
      const absl::StatusOr<TrainingRun> run = Train(job, again->stages, ops, 0, kNumSteps);
      ASSERT_TRUE(run.ok()) << run.status();
      EXPECT_EQ(run->log.outputs, wanted->log.outputs);
      // A pipeline's stage whose layers do not take part needs what it needed.
      for (size_t rank = 0; rank < run->touched_bytes.size(); ++rank)
        EXPECT_LE(run->touched_bytes[rank], wanted->touched_bytes[rank]) << "rank " << rank;
      const double part = Sum(run->touched_bytes) / Sum(wanted->touched_bytes);
      EXPECT_LT(part, 0.98);
      absl::StrAppendFormat(&table, "%-8s %-32s %5d  %.3f\n", family, layout.Name(), layout.ranks(), part);
    }
  }
  PrintTable(absl::StrCat(family, "_gc"), table);
}

INSTANTIATE_TEST_SUITE_P(Models, GcTest, testing::Values("llama", "bloom", "mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
