// What the planner takes of a job's config.json and a cluster when the job leaves the layout open: each kind of
// parallelism where it pays, and for every other layout the reason why it lost.
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/planner/plan_json.h"
#include "graph/planner/report/words.h"
#include "graph/planner/request.h"
#include "gtest/gtest.h"
#include "tests/planner/config_model.h"

namespace tacc::graph {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

// A few wide layers, so that compiling them takes no time; beside these keys as the families have it.
json Config(const std::string& family, int64_t layers, int64_t heads) {
  return {{"model_type", family},
          {"vocab_size", 32000},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", heads % 8 == 0 ? 8 : heads},
          {"head_dim", 128},
          {"max_position_embeddings", 1 << 17}};
}

// As a candidate's reason or as an estimate's.
testing::Matcher<std::string> SlowedByWeights() {
  return AnyOf(HasSubstr("communication that nothing hides"), HasSubstr("weight and gradient traffic"));
}

class PicksTest : public ::testing::Test {
 protected:
  void PlanJob(const json& config, int64_t seq_len, int64_t global_batch, const json& dist, const json& cluster) {
    const json request = {{"job",
                           {{"name", "picks"},
                            {"model", {{"path", "/model"}}},
                            {"data", {{"seq_len", seq_len}}},
                            {"train", {{"max_steps", 10}, {"global_batch_size", global_batch}}},
                            {"dist", dist}}},
                          {"cluster", cluster}};
    const auto parsed = ParseCompileRequest(request.dump());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    auto planned = PlanCandidates(parsed->plan, ModelOfConfig(config, ops_), ops_);
    ASSERT_TRUE(planned.ok()) << planned.status();
    planned_ = *std::move(planned);
    const Candidate& best = planned_.candidates[0];
    EXPECT_TRUE(best.fits);
    EXPECT_EQ(best.layout.global_batch(), global_batch);
    // As the table has it: candidates, then losers.
    for (size_t i = 1; i < planned_.candidates.size(); ++i) {
      const Candidate& other = planned_.candidates[i];
      others_.push_back({other.layout, WhyLost(best, other, parsed->plan.device.memory_bytes)});
    }
    for (const Loser& loser : planned_.losers) others_.push_back({loser.scored.layout, loser.why});
    EXPECT_FALSE(others_.empty());
    EXPECT_THAT(Reasons([](const Layout&) { return true; }), Each(Not("")));
    for (const auto& [layout, why] : others_) reasons_ += layout.ToString() + ": " + why + "\n";
  }

  const Layout& Best() const { return planned_.candidates[0].layout; }

  // Why the layouts of that kind lost.
  std::vector<std::string> Reasons(const std::function<bool(const Layout&)>& kind) const {
    std::vector<std::string> reasons;
    for (const auto& [layout, why] : others_) {
      if (kind(layout)) reasons.push_back(why);
    }
    return reasons;
  }

  struct Other {
    Layout layout;
    std::string why;
  };
  const OpTable ops_;
  Planned planned_;
  std::vector<Other> others_;
  std::string reasons_;  // to look at when a test fails
};

// A token uses half of the experts, but a rank that has all of a layer's must gather them and multiply a few rows by
// each. Seven heads cannot be split over two.
TEST_F(PicksTest, ExpertParallelismWhereGatheringExpertsTakesLonger) {
  json config = Config("mixtral", 4, 7);
  config["num_local_experts"] = 8;
  config["num_experts_per_tok"] = 4;
  PlanJob(config, 512, 8, {{"ep", {{"buffer_factor", 2}}}}, {{"machine", "h100"}, {"gpus", 8}});
  EXPECT_GT(Best().sizes[Axis::kEp], 1) << Best().ToString() << "\n" << reasons_;
  EXPECT_EQ(Best().sizes[Axis::kTp], 1);
  const auto sharded = Reasons([](const Layout& l) { return l.sizes[Axis::kFsdp] == 8; });
  ASSERT_FALSE(sharded.empty()) << reasons_;
  EXPECT_THAT(sharded, Each(AnyOf(SlowedByWeights(), HasSubstr("slower products")))) << reasons_;
}

// A token uses two of eight experts: at one of four or eight ranks twice the average room is not always enough. The
// best such layout is shown with its risk, and taken where the job gives the room or the size.
TEST_F(PicksTest, BuffersThatMayOverflowAreShownAndTakenWhenAskedFor) {
  json config = Config("mixtral", 4, 7);
  config["num_local_experts"] = 8;
  config["num_experts_per_tok"] = 2;
  const json cluster = {{"machine", "h100"}, {"gpus", 8}};
  PlanJob(config, 512, 8, {{"pp", {{"size", 1}}}}, cluster);
  EXPECT_FALSE(planned_.candidates[0].overflow_risk.has_value());
  const double unasked = planned_.candidates[0].plan.step_seconds, unasked_flops = planned_.candidates[0].model_flops;
  const Candidate shown = planned_.candidates.back();
  ASSERT_TRUE(shown.overflow_risk.has_value()) << reasons_;
  EXPECT_FALSE(shown.overflow_risk->is_asked_for);
  EXPECT_LT(shown.plan.step_seconds, 0.99 * unasked) << shown.layout.ToString() << "\n" << reasons_;
  EXPECT_THAT(WhyLost(planned_.candidates[0], shown, 0),
              AllOf(HasSubstr(" faster, but only for a job that asks for it: tokens that find no room go without"),
                    HasSubstr("in a billion where all choose at random"), HasSubstr("over 2 times as often"),
                    HasSubstr(absl::StrCat("dist.ep.size: ", shown.layout.sizes[Axis::kEp], " asks for it"))));
  for (const json& consent :
       {json{{"buffer_factor", 2}}, json{{"size", shown.layout.sizes[Axis::kEp]}}, json{{"buffer_factor", 1.1}}}) {
    SCOPED_TRACE(consent.dump());
    PlanJob(config, 512, 8, {{"pp", {{"size", 1}}}, {"ep", consent}}, cluster);
    const Candidate& taken = planned_.candidates[0];
    ASSERT_TRUE(taken.overflow_risk.has_value()) << taken.layout.ToString();
    EXPECT_TRUE(taken.overflow_risk->is_asked_for);
    EXPECT_EQ(taken.overflow_risk->share_at_random > 1e-4, consent.value("buffer_factor", 2.0) < 2);
    EXPECT_LT(taken.plan.step_seconds, 0.99 * unasked);
    // MFU counts no product of what finds no room.
    const double left_out = 1 - taken.model_flops / unasked_flops;
    EXPECT_GE(left_out, 0.5 * taken.overflow_risk->share_at_random - 1e-9);
    EXPECT_LE(left_out, taken.overflow_risk->share_at_random + 1e-9);
    const json kept = SettingsJson(CompileRequest{.plan = PlanRequest{.expert_buffer_factor = 1.5}}, taken);
    EXPECT_EQ(kept["dist"]["ep"], json({{"buffer_factor", 1.5}, {"size", taken.layout.sizes[Axis::kEp]}}));
  }
}

// One sample of a long sequence: nothing else shares its attention out without sending all of its activations.
TEST_F(PicksTest, ContextParallelismForALongSequence) {
  PlanJob(Config("llama", 2, 32), 1 << 17, 1, json::object(), {{"machine", "h100"}, {"gpus", 8}});
  EXPECT_GT(Best().sizes[Axis::kCp], 1) << Best().ToString() << "\n" << reasons_;
  EXPECT_FALSE(Reasons([](const Layout& l) { return l.sizes[Axis::kCp] == 1 && l.sizes[Axis::kTp] == 8; }).empty())
      << reasons_;
}

// Between machines with slow links only a stage's output is small enough to send.
TEST_F(PicksTest, PipelineParallelismOverSlowLinks) {
  PlanJob(Config("llama", 8, 32), 2048, 64, json::object(),
          {{"machine", "a100"}, {"nodes", 8}, {"devices_per_node", 1}, {"inter_bytes_per_second", 1.25e9}});
  EXPECT_GT(Best().sizes[Axis::kPp], 1) << Best().ToString() << "\n" << reasons_;
  const auto copies = Reasons([](const Layout& l) { return l.sizes[Axis::kPp] == 1; });
  ASSERT_FALSE(copies.empty()) << reasons_;
  EXPECT_THAT(copies, Each(SlowedByWeights())) << reasons_;
}

// Every micro-batch of a stage waits for what ZeRO-3 gathers and reduces: at the end of a call nothing hides it.
TEST_F(PicksTest, GradientsReducedOnceInAPipeline) {
  const json cluster = {{"machine", "h100"}, {"nodes", 4}, {"devices_per_node", 4}};
  const json config = Config("llama", 8, 32),
             dist = {{"pp", {{"size", 2}, {"num_micro_batches", 16}}}, {"fsdp", {{"size", 8}}}};
  PlanJob(config, 1024, 128, dist, cluster);
  const Candidate open = planned_.candidates[0];
  EXPECT_FALSE(open.layout.shards_gradients()) << Best().ToString() << "\n" << reasons_;
  json third = dist;
  third["fsdp"]["zero_stage"] = 3;
  PlanJob(config, 1024, 128, third, cluster);
  const Candidate once = planned_.candidates[0];
  EXPECT_FALSE(once.layout.reduce_each_micro_batch) << Best().ToString() << "\n" << reasons_;
  third["fsdp"]["reduce_each_micro_batch"] = true;
  PlanJob(config, 1024, 128, third, cluster);
  EXPECT_TRUE(Best().reduce_each_micro_batch);
  EXPECT_LE(open.plan.step_seconds, once.plan.step_seconds);
  EXPECT_LT(once.plan.step_seconds, 0.99 * planned_.candidates[0].plan.step_seconds);
}

// A job that shards nothing, of a model that no device holds.
TEST_F(PicksTest, PipelineParallelismForAModelThatIsTooLarge) {
  PlanJob(Config("llama", 32, 7), 2048, 64, {{"fsdp", {{"size", 1}}}}, {{"machine", "h100"}, {"gpus", 8}});
  EXPECT_GT(Best().sizes[Axis::kPp], 1) << Best().ToString() << "\n" << reasons_;
  const auto copies = Reasons([](const Layout& l) { return l.sizes[Axis::kDp] == 8; });
  ASSERT_FALSE(copies.empty()) << reasons_;
  EXPECT_THAT(copies, Each(HasSubstr("does not fit: "))) << reasons_;
}

}  // namespace
}  // namespace tacc::graph
