#include "worker/checkpoint/checkpoint_name.h"

#include <gtest/gtest.h>

namespace tacc::worker {
namespace {

TEST(CheckpointNameTest, RoundTrips) {
  EXPECT_EQ(CheckpointName({200, 1}), "step-00000200.a1");
  EXPECT_EQ(TemporaryCheckpointName({200, 12}), ".tmp-step-00000200.a12");
  for (const CheckpointId id : {CheckpointId{0, 1}, CheckpointId{99999999, 3}, CheckpointId{1234567890123, 10}}) {
    const auto parsed = ParseCheckpointName(CheckpointName(id));
    ASSERT_TRUE(parsed.has_value());
    EXPECT_EQ(parsed->step, id.step);
    EXPECT_EQ(parsed->attempt, id.attempt);
  }
}

TEST(CheckpointNameTest, OtherNamesAreNotCheckpoints) {
  for (const char* name :
       {"", "step-", "step-200.a1", "step-00000200", "step-00000200.a", "step-00000200.a01", "step-00000200.a-1",
        "step--0000200.a1", "step-+0000200.a1", " step-00000200.a1", "step-00000200.a1 ", "step-00000200.a1/",
        "step-00000200.a1/..", "../step-00000200.a1", ".tmp-step-00000200.a1", "step-99999999999999999999.a1"}) {
    EXPECT_FALSE(ParseCheckpointName(name).has_value()) << name;
  }
}

}  // namespace
}  // namespace tacc::worker
