#include "graph/ir/plan.h"

#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

TEST(Plan, PrintOfParseIsIdentity) {
  Plan plan;
  plan.mesh = {{{"dp", 2}, {"fsdp", 4}}};
  plan.compute_dtype = DType::kBF16;
  plan.residual_dtype = DType::kBF16;
  plan.seq_len = 512;
  plan.micro_batch = 3;
  plan.accumulation = 2;
  plan.zero_stage = 2;
  plan.reduce_each_micro_batch = 0;
  plan.keeps_copies = 1;
  plan.kept_units = 3;
  plan.schedule = PipelineSchedule::kInterleaved;
  plan.num_chunks = 5;
  plan.recompute_units = 7;
  plan.step_seconds = 0.125;
  auto parsed = ParsePlan(PrintPlan(plan));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, plan);
  EXPECT_EQ(plan.global_batch(), 48);
}

TEST(Plan, ErrorsNameTheLine) {
  EXPECT_EQ(ParsePlan("hello").status().message(), "plan line 1: wanted 'tacc.plan 1'");
  EXPECT_EQ(ParsePlan("tacc.plan 1\nmesh dp\n").status().message(),
            "plan line 2: 'dp' is no mesh axis; wanted name=size");
  EXPECT_EQ(ParsePlan("tacc.plan 1\nseq_len x\n").status().message(), "plan line 2: 'x' is not a whole number");
  EXPECT_EQ(ParsePlan("tacc.plan 1\nschedule gpipe\n").status().message(),
            "plan line 2: 'gpipe' is no schedule; wanted 1f1b, interleaved or zero_bubble");
  EXPECT_EQ(ParsePlan("tacc.plan 1\nsize 3\n").status().message(), "plan line 2: unknown key 'size'");
}

}  // namespace
}  // namespace tacc::graph
