#include "graph/planner/cost/pipeline_seconds.h"

#include <gtest/gtest.h>

namespace tacc::graph {
namespace {

// Slots of equal stages, of a third each for forward, backward and weights.
double Slots(PipelineSchedule schedule, int stages, int chunks, int64_t micro_batches, double message = 0) {
  const double third = 1.0 / 3;
  return PipelineSeconds({schedule, stages, chunks, micro_batches},
                         std::vector<PassSeconds>(static_cast<size_t>(stages), {third, third, third}), message);
}

TEST(PipelineSeconds, OneForwardOneBackwardWaitsForTheOtherStages) {
  for (int stages : {1, 2, 5}) {
    for (int64_t micro_batches : {1, 4, 100})
      EXPECT_NEAR(Slots(PipelineSchedule::k1F1B, stages, 1, micro_batches),
                  static_cast<double>(micro_batches + stages - 1), 1e-9);
  }
}

TEST(PipelineSeconds, ChunksDivideTheBubble) {
  for (int64_t micro_batches : {4, 8, 400}) {
    const auto all = static_cast<double>(micro_batches);
    EXPECT_NEAR(Slots(PipelineSchedule::kInterleaved, 4, 2, micro_batches), all + 3.0 / 2, 1e-9);
    EXPECT_NEAR(Slots(PipelineSchedule::kInterleaved, 4, 3, micro_batches), all + 1, 1e-9);
  }
  EXPECT_NEAR(Slots(PipelineSchedule::kInterleaved, 4, 2, 6), 6, 1e-9);  // no such schedule
}

// Of one micro-batch there is nothing to do meanwhile but its own weight passes: forwards and backwards of both stages,
// then the first one's weights, five thirds of a slot. Of many, weight passes fill two thirds of what 1F1B waits.
TEST(PipelineSeconds, WeightPassesFillWhatTheyCan) {
  EXPECT_NEAR(Slots(PipelineSchedule::kZeroBubble, 2, 1, 1), 5.0 / 3, 1e-9);
  EXPECT_NEAR(Slots(PipelineSchedule::kZeroBubble, 4, 1, 1), 3, 1e-9);
  for (int64_t micro_batches : {12, 100})
    EXPECT_NEAR(Slots(PipelineSchedule::kZeroBubble, 4, 1, micro_batches), static_cast<double>(micro_batches) + 1,
                1e-9);
}

// Nobody waits for the weight pass of a last stage that is slower: of one micro-batch it is not on the way.
TEST(PipelineSeconds, StagesMayDiffer) {
  EXPECT_NEAR(PipelineSeconds({PipelineSchedule::kZeroBubble, 2, 1, 1}, {{1, 1, 1}, {4, 4, 1}}, 0), 1 + 4 + 4 + 2,
              1e-9);
  EXPECT_NEAR(PipelineSeconds({PipelineSchedule::k1F1B, 2, 1, 10}, {{1, 1, 1}, {2, 2, 2}}, 0), 10 * 6 + 3, 1e-9);
}

// A stage has as many micro-batches under way as there are stages from it on. The last one's answer takes a message
// more each way and hop.
TEST(PipelineSeconds, MessagesDelayWhatIsUnderWay) {
  const double message = 1.0 / 64;
  EXPECT_NEAR(Slots(PipelineSchedule::k1F1B, 2, 1, 100, message), 101 + 100 * message, 2 * message);
  // Chunks have more under way.
  EXPECT_LT(Slots(PipelineSchedule::kInterleaved, 2, 2, 100, message), 100.5 + 10 * message);
  // One micro-batch waits for each.
  EXPECT_NEAR(Slots(PipelineSchedule::k1F1B, 4, 1, 1, message), 4 + 6 * message, 1e-9);
}

}  // namespace
}  // namespace tacc::graph
