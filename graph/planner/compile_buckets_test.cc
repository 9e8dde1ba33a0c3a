#include "graph/planner/compile_buckets.h"

#include <map>

#include "gmock/gmock.h"
#include "graph/analysis/cost.h"
#include "graph/planner/compile_plan.h"
#include "graph/planner/testing/test_request.h"
#include "graph/verify/verify.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

std::map<std::string, int64_t> PlacesIn(const Program& program) {
  std::map<std::string, int64_t> places;
  for (const State& state : program.states) places[state.name] = state.offset;
  return places;
}

// FLOPs of what is linear in the length: all but attention.
double LinearFlops(const Program& program, const OpTable& ops) {
  double flops = 0;
  for (const Node& node : program.FindGraph(program.step[1].graph)->nodes) {
    const OpDef& def = *ops.Find(node.op);
    if (node.op == "einsum" && def.flops != nullptr)
      flops += def.flops(CallOf(*program.FindGraph(program.step[1].graph), node));
  }
  return flops;
}

TEST(CompileBuckets, ShorterProgramsShareTheStatesAndCostTheirOwnLength) {
  const OpTable ops;
  PlanRequest request =
      Parse(Replaced(Replaced(kRequest, R"("seq_len": 6)", R"("seq_len": 6, "client": {"buckets": [2, 3, 6]})"),
                     "\"global_batch_size\": 8", "\"global_batch_size\": 8, \"per_device_train_batch_size\": 2"))
          .plan;
  EXPECT_EQ(request.buckets, (std::vector<int64_t>{2, 3}));
  request.sizes[Axis::kFsdp] = 2;
  const auto planned = PlanCandidates(request, TestModel(), ops);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const Candidate& best = planned->candidates[0];
  const auto model = TestModel()(best.plan.micro_batch * best.plan.num_data_ranks(), 6);
  const auto longest = CompilePlan(request, best.plan, *model, ops);
  ASSERT_TRUE(longest.ok()) << longest.status();
  const auto buckets = CompileBuckets(request, best, longest->stages, TestModel(), ops);
  ASSERT_TRUE(buckets.ok()) << buckets.status();
  ASSERT_EQ(buckets->size(), 2u);
  for (const Bucket& bucket : *buckets) {
    const Program &shorter = bucket.stages[0], &whole = longest->stages[0];
    EXPECT_EQ(shorter.seq_len, bucket.seq_len);
    EXPECT_TRUE(Verify(shorter, ops).ok()) << Verify(shorter, ops);
    EXPECT_EQ(PlacesIn(shorter), PlacesIn(whole));
    EXPECT_EQ(shorter.step, whole.step);
    EXPECT_LE(shorter.arena_bytes, whole.arena_bytes);
    const double share = static_cast<double>(bucket.seq_len) / 6;
    EXPECT_DOUBLE_EQ(LinearFlops(shorter, ops), share * LinearFlops(whole, ops));
    EXPECT_LE(bucket.model_flops, share * best.model_flops);
    EXPECT_GT(bucket.model_flops, share * share * best.model_flops);
  }
}

TEST(CompileBuckets, AModelOfOneLengthIsRefused) {
  const OpTable ops;
  PlanRequest request = Parse(kRequest).plan;
  request.buckets = {3};
  const ForwardBuilder fixed = [](int64_t batch, int64_t) { return TestModel()(batch, 6); };
  EXPECT_THAT(std::string(CheckBuckets(request, fixed, ops).message()), HasSubstr("the model has one length"));
  const ForwardBuilder broken = [](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    if (seq_len != 6) return absl::InvalidArgumentError("model.graph:7:3: sizes differ");
    return TestModel()(batch, seq_len);
  };
  EXPECT_EQ(CheckBuckets(request, broken, ops).message(),
            "data.client.buckets: the model does not take samples of 3 tokens: model.graph:7:3: sizes differ");
}

// A ring of two has four blocks of the sequence.
TEST(CompileBuckets, ALayoutCutsAllLengths) {
  const OpTable ops;
  PlanRequest request = Parse(Replaced(kRequest, R"("seq_len": 6)", R"("seq_len": 8)")).plan;
  request.sizes[Axis::kCp] = 2;
  EXPECT_TRUE(CheckLayout(request, TestModel(), ops).ok());
  request.buckets = {6};
  EXPECT_THAT(std::string(CheckLayout(request, TestModel(), ops).message()),
              HasSubstr("does not fit a sequence of 6 or 8 tokens"));
}

}  // namespace
}  // namespace tacc::graph
