// The estimate of a layout (graph/planner/cost/estimate.h) beside what its programs say: build/agreement in small.
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/import/finetune/lora.h"
#include "graph/passes/modules/units.h"
#include "graph/passes/stages/stages.h"
#include "graph/planner/cost/analyze.h"
#include "graph/planner/cost/estimate_parts.h"
#include "graph/planner/planner.h"
#include "gtest/gtest.h"
#include "tests/planner/config_model.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

json Dense(int64_t layers, int64_t vocabulary) {
  return {{"model_type", "llama"},
          {"vocab_size", vocabulary},
          {"hidden_size", 4096},
          {"intermediate_size", 14336},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 32},
          {"num_key_value_heads", 8},
          {"head_dim", 128},
          {"max_position_embeddings", 1 << 17},
          {"tie_word_embeddings", false}};
}

json Mixture(int64_t layers) {
  return {{"model_type", "mixtral"},
          {"vocab_size", 32000},
          {"hidden_size", 2048},
          {"intermediate_size", 1024},
          {"num_hidden_layers", layers},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 4},
          {"head_dim", 128},
          {"max_position_embeddings", 4096},
          {"num_local_experts", 32},
          {"num_experts_per_tok", 8},
          {"sliding_window", nullptr},
          {"tie_word_embeddings", false}};
}

struct Case {
  std::string name;
  json config;
  int64_t devices, seq_len, batch, ep;
  bool lora = false;  // adapters of all linear modules are trained, the rest is frozen
};

// The model of a case: `plain`, or with adapters.
ForwardBuilder ModelOf(const Case& c, const ForwardBuilder& plain, const OpTable& ops) {
  if (!c.lora) return plain;
  return [plain, &ops](int64_t batch, int64_t seq_len) -> absl::StatusOr<ForwardModel> {
    absl::StatusOr<ForwardModel> model = plain(batch, seq_len);
    if (!model.ok()) return model;
    const LoraModel lora_model = {"lm_head", "lm_head", "", 0};
    const auto modules = AddLora({.r = 16, .target_modules = {kAllLinear}}, lora_model, ops, model->forward);
    if (!modules.ok()) return modules.status();
    return model;
  };
}

class EstimatesTest : public testing::TestWithParam<Case> {};

// Of a spread of layouts, by the whole model's programs. Models of so few layers are harder than those of many, and
// pipelines of them most: their stages differ by a head's work.
TEST_P(EstimatesTest, AreThoseOfThePrograms) {
  const Case& c = GetParam();
  PlanRequest request = JobOn("h100", c.devices, c.seq_len, c.batch);
  if (c.ep > 0) request.sizes[Axis::kEp] = c.ep;
  const OpTable ops;
  const ForwardBuilder model = ModelOf(c, ModelOfConfig(c.config, ops), ops);
  const auto legal = LegalLayouts(request, model, ops);
  ASSERT_TRUE(legal.ok()) << legal.status();
  constexpr size_t kLayouts = 40;
  ASSERT_GE(legal->size(), 2 * kLayouts);
  // The faster half: what is far behind is never taken.
  std::vector<Scored> spread;
  for (size_t i = 0; i < kLayouts; ++i) spread.push_back((*legal)[i * legal->size() / 2 / kLayouts]);
  std::vector<Layout> layouts;
  for (const Scored& scored : spread) layouts.push_back(scored.layout);
  const auto measured = MeasureLayouts(request, layouts, Programs::kWhole, model, ops);
  ASSERT_TRUE(measured.ok()) << measured.status();
  double error = 0;
  for (size_t i = 0; i < kLayouts; ++i) {
    ASSERT_TRUE((*measured)[i].ok()) << (*measured)[i].status();
    const double ratio = spread[i].step.seconds / (*measured)[i]->plan.step_seconds;
    EXPECT_NEAR(ratio, 1, layouts[i].sizes[Axis::kPp] > 1 ? 0.15 : 0.1) << layouts[i].ToString();
    error += std::abs(ratio - 1) / kLayouts;
    if (!c.lora) continue;
    const MemoryUse& memory = (*measured)[i]->memory;
    const auto bytes = static_cast<double>(memory.arena_bytes + memory.workspace_bytes);
    EXPECT_NEAR(spread[i].memory.total() / bytes, 1, 0.2) << layouts[i].ToString();
  }
  // Adapters are many small products, and sums of little over tp.
  EXPECT_LT(error, c.lora ? 0.045 : 0.03);
}

INSTANTIATE_TEST_SUITE_P(Jobs, EstimatesTest,
                         testing::Values(Case{"Dense", Dense(8, 128256), 16, 4096, 64, 0},
                                         Case{"LongContext", Dense(4, 32000), 16, 65536, 16, 0},
                                         Case{"Mixture", Mixture(8), 16, 4096, 64, 8},
                                         Case{"Adapters", Dense(8, 128256), 16, 4096, 64, 0, true}),
                         [](const auto& info) { return info.param.name; });

// The backward has no gradients of the frozen weights, so a step is two of three products of the whole model's; and the
// estimate, as the programs, has gradients and moments of the adapters alone, and the base in bf16.
TEST(AdaptersTest, CostWhatIsTrained) {
  const OpTable ops;
  const json config = Dense(4, 32000);
  const PlanRequest request = JobOn("h100", 1, 2048, 4);
  const ForwardBuilder plain = ModelOfConfig(config, ops);
  const ForwardBuilder adapted = ModelOf({"", config, 1, 2048, 4, 0, true}, plain, ops);
  const auto whole = PlanCandidates(request, plain, ops), lora = PlanCandidates(request, adapted, ops);
  ASSERT_TRUE(whole.ok()) << whole.status();
  ASSERT_TRUE(lora.ok()) << lora.status();
  const Candidate &all = whole->candidates[0], &some = lora->candidates[0];
  EXPECT_NEAR(some.model_flops / all.model_flops, 2.0 / 3, 0.03);
  EXPECT_LT(some.plan.step_seconds, all.plan.step_seconds);
  const int64_t adapters = some.memory.gradients_bytes / 4;
  EXPECT_EQ(some.memory.optimizer_bytes, 8 * adapters);
  EXPECT_EQ(some.memory.weights_bytes - some.memory.frozen_bytes, 4 * adapters);
  EXPECT_LT(adapters, all.memory.gradients_bytes / 4 / 100);
  EXPECT_EQ(all.memory.frozen_bytes, 0);

  const auto work = AnalyzeModel(adapted(1, 2048)->forward, adapted(1, 2048)->units, DType::kBF16, ops);
  ASSERT_TRUE(work.ok()) << work.status();
  const MemoryEstimate estimate =
      EstimateMemory(*work, some.layout, ExecutionOf(request.cluster.machine, DType::kBF16, DType::kF32));
  EXPECT_EQ(estimate.optimizer, static_cast<double>(some.memory.optimizer_bytes));
  EXPECT_NEAR(estimate.weights / static_cast<double>(some.memory.weights_bytes), 1, 0.01);
}

// A pipeline's stages have as many layers in the estimate as in the programs.
TEST(PartsTest, AreCutAsThePrograms) {
  const OpTable ops;
  for (int64_t vocabulary : {1000, 32000, 128256}) {
    for (int64_t layers : {4, 7, 13}) {
      const auto forward = ModelOfConfig(Dense(layers, vocabulary), ops)(1, 2048);
      ASSERT_TRUE(forward.ok()) << forward.status();
      const auto work = AnalyzeModel(forward->forward, forward->units, DType::kBF16, ops);
      ASSERT_TRUE(work.ok()) << work.status();
      Units units(forward->units);
      StageOptions options;
      options.units = forward->units;
      for (int64_t parts = 2; parts <= layers; ++parts) {
        const auto cuts = CutPoints(forward->forward, static_cast<int>(forward->forward.nodes.size()), ops, options,
                                    static_cast<int>(parts));
        ASSERT_TRUE(cuts.ok()) << cuts.status();
        std::vector<int64_t> begins, counts;
        for (size_t part = 0; part < cuts->size(); ++part)
          begins.push_back(part == 0 ? 0 : units.Of(forward->forward.nodes[(*cuts)[part]].module));
        begins.push_back(layers);
        for (size_t part = 0; part < cuts->size(); ++part) counts.push_back(begins[part + 1] - begins[part]);
        EXPECT_EQ(LayersOfParts(*work, parts, false), counts) << layers << " layers, " << vocabulary << " words";
      }
    }
  }
}

}  // namespace
}  // namespace tacc::graph
