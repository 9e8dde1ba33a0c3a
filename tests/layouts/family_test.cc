// The weights of every family say what their dims are, so that tensor parallelism follows: two ranks train as one does,
// in double precision, and share the work of the matrix products.
#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "graph/analysis/cost.h"
#include "graph/import/families.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/interpreter/simulation.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;
using nlohmann::json;

constexpr int64_t kBatch = 2, kSeq = 6, kVocab = 22;
constexpr double kTolerance = 1e-11;

// Where they have them with windows, soft caps and dropout of attention, each on one family at least.
json ConfigOfGpt(const std::string& family) {
  json config = {{"model_type", family}, {"vocab_size", kVocab}};
  if (family == "gpt2") {
    config.update({{"n_embd", 16}, {"n_layer", 2}, {"n_head", 4}, {"n_positions", 16}, {"n_inner", 18}});
    config.update({{"attn_pdrop", 0.2}, {"resid_pdrop", 0.0}, {"embd_pdrop", 0.0}, {"tie_word_embeddings", false}});
    return config;
  }
  config.update({{"hidden_size", 16}, {"num_hidden_layers", 2}, {"num_attention_heads", 4}});
  config.update({{"max_position_embeddings", 32}, {"tie_word_embeddings", false}});
  if (family == "gpt_neox") config.update({{"intermediate_size", 18}, {"rotary_pct", 0.5}});
  if (family == "falcon") {
    config.update({{"new_decoder_architecture", true}, {"num_kv_heads", 2}, {"bias", true}, {"ffn_hidden_size", 18}});
  }
  return config;
}

json Config(const std::string& family) {
  if (family == "gpt2" || family == "gpt_neox" || family == "falcon") return ConfigOfGpt(family);
  if (family == "bloom")
    return {{"model_type", "bloom"}, {"vocab_size", kVocab}, {"hidden_size", 16}, {"n_layer", 2}, {"n_head", 4}};
  if (family == "hf_olmo") {
    return {{"model_type", "hf_olmo"},
            {"vocab_size", kVocab},
            {"embedding_size", kVocab},
            {"d_model", 16},
            {"n_layers", 2},
            {"n_heads", 4},
            {"residual_dropout", 0.0},
            {"embedding_dropout", 0.0},
            {"attention_dropout", 0.0},
            {"rope", true},
            {"mlp_hidden_size", 36},
            {"weight_tying", false}};
  }
  if (family == "chatglm") {
    return {{"model_type", "chatglm"},
            {"padded_vocab_size", kVocab},
            {"hidden_size", 16},
            {"ffn_hidden_size", 18},
            {"num_layers", 2},
            {"num_attention_heads", 4},
            {"kv_channels", 8},
            {"seq_length", 32},
            {"multi_query_attention", true},
            {"multi_query_group_num", 2},
            {"add_qkv_bias", true}};
  }
  json config = {{"model_type", family},         {"vocab_size", kVocab},   {"hidden_size", 16},
                 {"intermediate_size", 18},      {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                 {"max_position_embeddings", 32}};
  if (family == "baichuan") return config;
  if (family == "deepseek_v2" || family == "deepseek_v3") {
    config.update({{"n_routed_experts", 4},
                   {"n_shared_experts", 1},
                   {"num_experts_per_tok", 2},
                   {"moe_intermediate_size", 10},
                   {"first_k_dense_replace", 1},
                   {"q_lora_rank", 4},
                   {"kv_lora_rank", 4},
                   {"qk_nope_head_dim", 12},
                   {"qk_rope_head_dim", 4},
                   {"v_head_dim", 14}});
    if (family == "deepseek_v3") config.update({{"n_group", 2}, {"topk_group", 1}});
    return config;
  }
  config["num_key_value_heads"] = 2;
  config["head_dim"] = 6;
  if (family == "granitemoe") config["num_local_experts"] = 4;
  if (family == "mixtral" || family == "qwen2_moe" || family == "qwen3_moe" || family == "olmoe" ||
      family == "gpt_oss") {
    config["num_experts"] = 4;
    config["num_experts_per_tok"] = 2;
  }
  if (family == "qwen2_moe" || family == "qwen3_moe") config["moe_intermediate_size"] = 10;
  if (family == "qwen2_moe") config["shared_expert_intermediate_size"] = 14;
  if (family == "gemma3_text") config["sliding_window_pattern"] = 2;
  if (family == "gemma2" || family == "gemma3_text" || family == "olmo3" || family == "gpt_oss")
    config["sliding_window"] = 3;
  if (family == "gemma2") config.update({{"attn_logit_softcapping", 1.5}, {"final_logit_softcapping", 2.0}});
  if (family == "smollm3") config.update({{"no_rope_layers", {1, 0}}, {"tie_word_embeddings", false}});
  if (family == "starcoder2") config.update({{"sliding_window", 4}, {"attention_dropout", 0.3}});
  return config;
}

// `left_out`: a step of the pipeline that is not done.
absl::StatusOr<Compiled> CompileFor(const std::string& family, int64_t tp, const OpTable& ops,
                                    const std::string& left_out = "") {
  TACC_ASSIGN_OR_RETURN(const ReadFamily read, ReadModelConfig(Config(family), kSeq));
  DecoderBuildOptions build;
  build.batch = kBatch;
  build.seq_len = kSeq;
  TACC_ASSIGN_OR_RETURN(const Graph forward, BuildDecoder(read.spec, build, ops));
  CompileOptions options;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "constant";
  options.partition =
      LayoutOf({{{"tp", std::min<int64_t>(tp, 2)}, {"tpq", std::max<int64_t>(tp / 2, 1)}}}, read.spec.names.embedding);
  for (int64_t i = 0; i < read.spec.num_layers; ++i) options.partition.units.push_back(read.spec.LayerPath(i));
  options.schedule.units = options.partition.units;
  Compiled compiled;
  compiled.stages.resize(1);
  compiled.stages[0].graphs = {forward};
  std::vector<Pass> passes = BuildPipeline(options, &compiled.memory);
  std::erase_if(passes, [&](const Pass& pass) { return pass.name == left_out; });
  TACC_RETURN_IF_ERROR(RunPipeline(passes, ops, {}, compiled.stages));
  return compiled;
}

// Losses of three steps.
std::vector<double> Train(const Program& program) {
  interpreter::Simulation simulation(program);
  for (const State& state : program.states) {
    if (state.kind != StateKind::kWeight) continue;
    std::mt19937 random(static_cast<uint32_t>(state.name.size()));
    std::normal_distribution<double> normal(state.init == "ones" ? 1.0 : 0.0, 0.3);
    Array weight = Array::Filled(state.logical_dims(), 0);
    for (double& x : weight.values) x = normal(random);
    EXPECT_TRUE(simulation.SetState(state.name, weight).ok());
  }
  std::mt19937 random(7);
  std::vector<double> losses;
  for (int step = 0; step < 3; ++step) {
    const absl::Status status = simulation.Run(program.step, [&](int64_t) {
      Arrays inputs;
      for (const char* name : {"tokens", "targets"}) {
        inputs[name] = Array::Filled({kBatch, kSeq}, 0);
        for (double& x : inputs[name].values) x = static_cast<double>(random() % kVocab);
      }
      inputs["step"] = Array{{}, {static_cast<double>(step)}};
      inputs["sample"] = Array::Filled({kBatch}, 0);
      for (int64_t b = 0; b < kBatch; ++b) inputs["sample"].values[b] = static_cast<double>(step * kBatch + b);
      return inputs;
    });
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return losses;
    losses.push_back(simulation.outputs().at("loss").values[0]);
  }
  return losses;
}

class FamilyLayoutTest : public testing::TestWithParam<std::string> {};

TEST_P(FamilyLayoutTest, TwoRanksTrainAsOneAndShareTheWork) {
  const OpTable ops;
  const absl::StatusOr<Compiled> one = CompileFor(GetParam(), 1, ops), two = CompileFor(GetParam(), 2, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(two.ok()) << two.status();
  const std::vector<double> wanted = Train(one->stages[0]), got = Train(two->stages[0]);
  ASSERT_EQ(wanted.size(), got.size());
  EXPECT_NE(wanted.front(), wanted.back());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_LE(std::abs(got[i] - wanted[i]), kTolerance * wanted[i]) << i;
  auto flops = [&](const Compiled& c) { return StepCostOf(c.stages[0], ops, DeviceProfile()).matmul_flops; };
  EXPECT_LE(flops(*two), 1.05 / 2 * flops(*one));
}

// More ranks than key-value heads, whose query heads lie in one matrix with them.
TEST(FamilyLayout, FourRanksShareTwoGroupsOfHeads) {
  const OpTable ops;
  const absl::StatusOr<Compiled> one = CompileFor("falcon", 1, ops), four = CompileFor("falcon", 4, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(four.ok()) << four.status();
  const std::vector<double> wanted = Train(one->stages[0]), got = Train(four->stages[0]);
  ASSERT_EQ(wanted.size(), got.size());
  for (size_t i = 0; i < wanted.size(); ++i) EXPECT_LE(std::abs(got[i] - wanted[i]), kTolerance * wanted[i]) << i;
}

struct Biases {
  int in_products = 0, added = 0;
};

Biases CountBiases(const Compiled& compiled) {
  Biases biases;
  const Graph& graph = *compiled.stages[0].FindGraph("forward_backward");
  for (const Node& node : graph.nodes) {
    const bool is_sum = node.op == "add" || node.op == "einsum_accumulate";
    if (!is_sum) continue;
    const ValueId summand = node.operands[node.op == "add" ? 1 : 0];
    if (graph.type(summand).rank() == graph.type(node.results[0]).rank()) continue;
    ++(node.op == "add" ? biases.added : biases.in_products);
  }
  return biases;
}

// Where tensor parallelism splits what is summed, the bias waits for the sum over ranks.
TEST(FamilyLayout, ProductsTakeTheirBiases) {
  const OpTable ops;
  struct Case {
    const char* family;
    int64_t tp;
    Biases wanted;
  };
  for (const Case& c : {Case{"bloom", 1, {8, 0}}, Case{"bloom", 2, {4, 4}}, Case{"qwen2", 1, {6, 0}},
                        Case{"qwen2", 2, {6, 0}}, Case{"chatglm", 1, {6, 0}}}) {
    SCOPED_TRACE(absl::StrCat(c.family, " over ", c.tp));
    const absl::StatusOr<Compiled> taken = CompileFor(c.family, c.tp, ops);
    const absl::StatusOr<Compiled> apart = CompileFor(c.family, c.tp, ops, "fuse-accumulation");
    ASSERT_TRUE(taken.ok()) << taken.status();
    ASSERT_TRUE(apart.ok()) << apart.status();
    EXPECT_EQ(CountBiases(*taken).in_products, c.wanted.in_products);
    EXPECT_EQ(CountBiases(*taken).added, c.wanted.added);
    EXPECT_EQ(CountBiases(*apart).added, c.wanted.in_products + c.wanted.added);
    const std::vector<double> got = Train(taken->stages[0]), wanted = Train(apart->stages[0]);
    ASSERT_EQ(got.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_LE(std::abs(got[i] - wanted[i]), kTolerance * wanted[i]) << i;
  }
}

// The tokens are gathered, not the table's gradients summed: those are as many as the vocabulary.
TEST(FamilyLayout, ATiedTablesGradientIsMadeInShards) {
  const OpTable ops;
  const absl::StatusOr<Compiled> compiled = CompileFor("bloom", 2, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const Graph& graph = *compiled->stages[0].FindGraph("forward_backward");
  int num_gradients = 0;
  for (const Node& node : graph.nodes) {
    if (node.op != "embedding_grad") continue;
    ++num_gradients;
    EXPECT_EQ(graph.type(node.results[0]).dims, (Dims{kVocab / 2, 16}));
  }
  EXPECT_EQ(num_gradients, 1);
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const Family& family : Families()) names.push_back(family.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyLayoutTest, testing::ValuesIn(FamilyNames()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tacc::graph
