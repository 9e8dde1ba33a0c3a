#include "worker/rank/run/loss_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tacc::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// The step of the first warning after steps (first, last] with one loss, and 0 when there is none.
int64_t WarnsAt(LossWatch& watch, int64_t first, int64_t last, double loss) {
  for (int64_t step = first + 1; step <= last; ++step) {
    if (!watch.Take(step, loss, 100).empty()) return step;
  }
  return 0;
}

TEST(LossWatch, ALossAboveTheEntropyAfter500Steps) {
  int num_asked = 0;
  LossWatch watch([&]() -> absl::StatusOr<double> { return ++num_asked, 6.05; });
  EXPECT_EQ(WarnsAt(watch, 0, 499, 7.25), 0);
  EXPECT_EQ(num_asked, 0);
  EXPECT_THAT(watch.Take(500, 7.25, 100),
              AllOf(HasSubstr("step 500: the mean loss of the last 50 steps is 7.250, above 6.050"),
                    HasSubstr("train.learning_rate"), HasSubstr("train.warmup_steps"), HasSubstr("tokenizer")));
  EXPECT_EQ(WarnsAt(watch, 500, 1000, 7.25), 0) << "once";
  EXPECT_EQ(num_asked, 1);
}

TEST(LossWatch, AModelThatHasLearnedTheFrequencies) {
  LossWatch watch([] { return 6.05; });
  EXPECT_EQ(WarnsAt(watch, 0, 450, 9), 0);
  EXPECT_EQ(WarnsAt(watch, 450, 1000, 6.05), 0);
  // It is lost later.
  EXPECT_EQ(WarnsAt(watch, 1000, 2000, 9), 1001);
}

// Frequencies are all that can be learned, and the mean of some steps lies a little above their entropy.
TEST(LossWatch, NoiseAboveTheEntropy) {
  LossWatch watch([] { return 6.05; });
  EXPECT_EQ(WarnsAt(watch, 0, 1000, 6.05 + 0.8 * LossWatch::kMargin), 0);
  EXPECT_GT(WarnsAt(watch, 1000, 2000, 6.05 + 1.2 * LossWatch::kMargin), 1000);
}

TEST(LossWatch, OneBatchIsNoMean) {
  LossWatch watch([] { return 6.05; });
  EXPECT_EQ(WarnsAt(watch, 0, 600, 5.5), 0);
  EXPECT_EQ(watch.Take(601, 8, 100), "");
  // Nor are many whose targets are few.
  for (int64_t step = 602; step < 620; ++step) EXPECT_EQ(watch.Take(step, 8, 1), "");
}

// Steps count from the training's beginning, losses from the start's.
TEST(LossWatch, AStartThatGoesOn) {
  LossWatch early([] { return 6.05; }), late([] { return 6.05; });
  EXPECT_EQ(WarnsAt(early, 470, 1000, 7), 520);
  EXPECT_EQ(WarnsAt(late, 8000, 9000, 7), 8050);
}

TEST(LossWatch, StepsWithoutALossDoNotCount) {
  LossWatch watch([] { return 6.05; });
  for (int64_t step = 1; step <= 600; ++step) {
    EXPECT_EQ(watch.Take(step, std::numeric_limits<double>::quiet_NaN(), 0), "");
    EXPECT_EQ(watch.Take(step, std::numeric_limits<double>::infinity(), 100), "");
  }
  EXPECT_EQ(WarnsAt(watch, 600, 1000, 7), 650);
}

TEST(LossWatch, AnUnknownEntropySaysNothing) {
  int num_asked = 0;
  LossWatch watch([&]() -> absl::StatusOr<double> { return ++num_asked, absl::UnavailableError("no disk"); });
  EXPECT_EQ(WarnsAt(watch, 0, 1000, 9), 0);
  EXPECT_EQ(num_asked, 1);
}

}  // namespace
}  // namespace tacc::worker
