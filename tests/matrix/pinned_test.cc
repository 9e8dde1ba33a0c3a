// What a job pins changes where experts' weights lie and what is sent, not what is learned: layouts with dist.pins
// against one rank, run as the matrix runs its layouts.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "tests/matrix/row.h"

namespace tacc::matrix {
namespace {

// Of every layer: the sharding of the two matrices [experts, inner, hidden] into the experts, and of the one
// [experts, hidden, inner] out of them.
graph::Pins PinExperts(const std::string& in, const std::string& out) {
  const std::string experts = "model.layers.*.block_sparse_moe.experts.*.";
  return {{absl::StrCat(experts, "w1.weight"), in},
          {absl::StrCat(experts, "w3.weight"), in},
          {absl::StrCat(experts, "w2.weight"), out}};
}

std::vector<Layout> PinnedLayouts() {
  return {
      // Split over the other dim: sums are pending elsewhere.
      {.ep = 2, .tp = 2, .pins = PinExperts("[ep, -, tp]", "[ep, tp, -]")},
      // Experts whole on every rank of ep, which then only splits samples.
      {.ep = 2, .tp = 2, .pins = PinExperts("[-, tp, -]", "[-, -, tp]")},
      // Each expert whole on its ranks of tp.
      {.ep = 2, .tp = 2, .pins = PinExperts("[ep, -, -]", "[ep, -, -]")},
      // Experts spread over tp; gathered over fsdp.
      {.fsdp = 2, .tp = 2, .pins = PinExperts("[tp, -, -]", "[tp, -, -]")},
      // One way in, another way out.
      {.ep = 2, .tp = 2, .pins = PinExperts("[ep, tp, -]", "[ep, tp, -]")},
      // One layer of a pipeline's stage.
      {.pp = 2, .ep = 2, .pins = {{"model.layers.3.block_sparse_moe.experts.*.w2.weight", "[-, -, -]"}}},
  };
}

class PinnedTest : public testing::TestWithParam<const char*> {};

TEST_P(PinnedTest, EqualsOneRank) {
  const graph::OpTable ops;
  References references(ops);
  for (const Layout& layout : PinnedLayouts()) {
    SCOPED_TRACE(absl::StrCat(layout.Name(), " ", absl::StrJoin(layout.pins, " ", absl::PairFormatter(" "))));
    const Job job = JobFor(GetParam(), layout);
    const absl::StatusOr<const Reference*> one = references.Of(job);
    ASSERT_TRUE(one.ok()) << one.status();
    Layout free = layout;
    free.pins.clear();
    const absl::StatusOr<graph::Compiled> pinned = CompileJob(job, layout, ops), unpinned = CompileJob(job, free, ops);
    ASSERT_TRUE(pinned.ok() && unpinned.ok()) << pinned.status() << unpinned.status();
    // The pin has an effect on some stage.
    bool differs = false;
    for (size_t stage = 0; stage < pinned->stages.size(); ++stage)
      differs |= pinned->stages[stage].states != unpinned->stages[stage].states;
    EXPECT_TRUE(differs);
    const absl::StatusOr<TrainingRun> run = Train(job, pinned->stages, ops, 0, kSteps);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_LE(Difference(run->log.losses(), (*one)->log.losses()), LossTolerance(layout));
    EXPECT_LE(Difference(run->log.norms(), (*one)->log.norms()), 1e-5);
    EXPECT_EQ(run->log.outputs.at(kChosenExperts), (*one)->log.outputs.at(kChosenExperts));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PinnedTest, testing::Values("mixtral"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tacc::matrix
