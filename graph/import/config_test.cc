// Every key of config.json is used, harmless by a written list, or refused by name.
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "graph/import/families.h"
#include "graph/import/model_facts.h"
#include "graph/import/testing/config_cases.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kSeqLen = 8;

absl::StatusOr<std::string> TextOf(const json& config) {
  TACC_ASSIGN_OR_RETURN(const ReadFamily read, ReadModelConfig(config, kSeqLen));
  DecoderBuildOptions options;
  options.batch = 2;
  options.seq_len = kSeqLen;
  TACC_ASSIGN_OR_RETURN(const Graph graph, BuildDecoder(read.spec, options, OpTable()));
  return absl::StrCat(Print(graph), absl::StrJoin(read.spec.notes, "\n"));
}

// The graph without its initial values.
absl::StatusOr<std::string> MathematicsOf(const json& config) {
  TACC_ASSIGN_OR_RETURN(const ReadFamily read, ReadModelConfig(config, kSeqLen));
  DecoderBuildOptions options;
  options.batch = 2;
  options.seq_len = kSeqLen;
  TACC_ASSIGN_OR_RETURN(Graph graph, BuildDecoder(read.spec, options, OpTable()));
  for (Node& node : graph.nodes) node.attrs.erase("init");
  return Print(graph);
}

class FamilyTest : public testing::TestWithParam<std::string> {};

// A checkpoint is of the same model where these are the same (docs/contracts.md, `identity`).
TEST_P(FamilyTest, FactsSayAllOfTheMathematics) {
  const json base = BaseConfig(GetParam());
  int num_different = 0;
  for (const Flip& flip : FlipsOf(GetParam())) {
    const json before = With(base, flip.others);
    const json after = With(before, {{flip.key, flip.value}});
    const absl::StatusOr<std::string> changed = MathematicsOf(after);
    if (!changed.ok()) continue;
    const bool is_different = changed.value() != MathematicsOf(before).value();
    EXPECT_EQ(ModelFacts(ReadModelConfig(after, kSeqLen)->spec) != ModelFacts(ReadModelConfig(before, kSeqLen)->spec),
              is_different)
        << flip.key << " = " << flip.value << " of " << before;
    num_different += is_different ? 1 : 0;
  }
  EXPECT_GE(num_different, 8);
}

TEST_P(FamilyTest, UnknownKeyIsRefusedByName) {
  json config = BaseConfig(GetParam());
  ASSERT_TRUE(TextOf(config).ok()) << TextOf(config).status();
  config["surprise"] = 3;
  config["another_one"] = nullptr;
  const absl::Status status = TextOf(config).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("config.json: surprise = 3: this key is not known"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("config.json: another_one = null: this key is not known"));
}

TEST_P(FamilyTest, EveryUsedKeyMatters) {
  const json base = BaseConfig(GetParam());
  std::set<std::string> flipped;
  for (const Flip& flip : FlipsOf(GetParam())) {
    flipped.insert(flip.key);
    const json before = With(base, flip.others);
    const json after = With(before, {{flip.key, flip.value}});
    const absl::StatusOr<std::string> changed = TextOf(after);
    if (!changed.ok()) {
      EXPECT_TRUE(absl::IsInvalidArgument(changed.status())) << changed.status();
      EXPECT_THAT(std::string(changed.status().message()), HasSubstr(flip.key)) << "the error must name the key";
      continue;
    }
    const absl::StatusOr<std::string> original = TextOf(before);
    ASSERT_TRUE(original.ok()) << flip.key << ": " << original.status();
    EXPECT_TRUE(*original != *changed) << flip.key << " = " << flip.value << " changes nothing";
  }
  const absl::StatusOr<ReadFamily> read = ReadModelConfig(base, kSeqLen);
  ASSERT_TRUE(read.ok());
  for (const std::string& key : read->used_keys)
    EXPECT_EQ(flipped.count(key), 1u) << key << " is read, but no case changes it";
}

TEST_P(FamilyTest, HarmlessKeysChangeNothing) {
  const json base = BaseConfig(GetParam());
  const absl::StatusOr<std::string> original = TextOf(base);
  std::set<std::string> keys = HarmlessKeys();
  for (const Family& family : Families()) {
    if (family.name == GetParam()) keys.insert(family.harmless.begin(), family.harmless.end());
  }
  for (const std::string& key : keys) {
    const absl::StatusOr<std::string> changed = TextOf(With(base, {{key, 7}}));
    ASSERT_TRUE(changed.ok()) << key << ": " << changed.status();
    EXPECT_TRUE(*original == *changed) << key;
  }
}

TEST_P(FamilyTest, AllProblemsAreListedAtOnce) {
  const json config = With(BaseConfig(GetParam()),
                           {{"surprise", 1}, {"architectures", 3}, {"torch_dtype", "int7"}, {"is_decoder", true}});
  const std::string message(TextOf(config).status().message());
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n') + 1, 4) << message;
  EXPECT_THAT(message, HasSubstr("config.json: architectures = 3: wanted a list of strings"));
}

// Multiply-adds of the matrix products, counted by hand: projections of each layer, attention's two products under a
// causal mask (half of them), and the head.
TEST_P(FamilyTest, FlopsMatchHandFormula) {
  json config = BaseConfig(GetParam());
  const double batch = 3, seq = 8, hidden = 24, layers = 2;
  double heads = 4, kv_heads = 4, head_dim = 6, inner = 20, mlp_matrices = 3, rows = 50;
  if (IsLlamaLike(GetParam())) {
    kv_heads = 2;
    config["num_key_value_heads"] = 2;
    head_dim = 10;
    config["head_dim"] = 10;
  }
  if (GetParam() == "chatglm") {
    kv_heads = 2;
    head_dim = 8;
  }
  static const std::set<std::string> kPlainMlps = {"bloom", "falcon", "gpt2", "gpt_neox", "starcoder2"};
  if (kPlainMlps.count(GetParam()) > 0) mlp_matrices = 2;
  if (GetParam() == "bloom" || GetParam() == "falcon" || GetParam() == "gpt2") inner = 96;
  if (GetParam() == "falcon") kv_heads = 1;
  if (GetParam() == "gpt_neox") {
    heads = kv_heads = 2;
    head_dim = 12;
  }
  if (GetParam() == "hf_olmo") {
    inner = 48;  // half of 4 x 24
    rows = 52;
    kv_heads = 1;
    config["n_kv_heads"] = 1;
  }
  const absl::StatusOr<ReadFamily> read = ReadModelConfig(config, kSeqLen);
  ASSERT_TRUE(read.ok()) << read.status();
  const OpTable ops;
  DecoderBuildOptions options;
  options.batch = 3;
  options.seq_len = kSeqLen;
  const absl::StatusOr<Graph> graph = BuildDecoder(read->spec, options, ops);
  ASSERT_TRUE(graph.ok()) << graph.status();
  double counted = 0;
  for (const Node& node : graph->nodes) {
    const OpDef* op = ops.Find(node.op);
    if (op->is_matmul) counted += op->flops(CallOf(*graph, node));
  }
  double projections = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden;
  double attention = 2 * heads * head_dim * seq / 2;  // per token
  double mlps = layers * mlp_matrices * hidden * inner;
  if (IsDeepseek(GetParam())) {
    const double q_rank = 10, kv_rank = 8, nope = 6, rope = 32, value = 9;
    projections = hidden * q_rank + q_rank * heads * (nope + rope) + hidden * (kv_rank + rope) +
                  kv_rank * heads * (nope + value) + heads * value * hidden;
    attention = heads * (nope + rope + value) * seq / 2;
    // A dense layer, and one with two of six experts, one for all, and the router.
    mlps = 3 * hidden * inner + hidden * 6 + (2 + 1) * 3 * hidden * 14;
  }
  if (IsMixture(GetParam())) {  // two of six experts, and the router
    const bool is_qwen = GetParam() == "qwen2_moe" || GetParam() == "qwen3_moe";
    const double dense_layers = is_qwen ? 1 : 0;
    mlps = dense_layers * 3 * hidden * inner;
    if (is_qwen) inner = 14;
    double shared = 0;
    if (GetParam() == "qwen2_moe") shared = hidden + 3 * hidden * 22;  // its weight, and its three matrices
    if (GetParam() == "gpt_oss") shared = 2 * (2 * inner + hidden);  // biases, each a column times a number of the slot
    mlps += (layers - dense_layers) * (hidden * 6 + 2 * 3 * hidden * inner + shared);
  }
  const double by_hand = 2 * batch * seq * (layers * (projections + attention) + mlps + hidden * rows);
  EXPECT_NEAR(counted, by_hand, 1e-3 * by_hand);
}

// Every dim of a weight that layouts may split says what it is, by its extent.
TEST_P(FamilyTest, WeightsSayWhatTheirDimsAre) {
  json config = BaseConfig(GetParam());
  if (IsLlamaLike(GetParam())) config["num_key_value_heads"] = 2;
  const absl::StatusOr<ReadFamily> read = ReadModelConfig(config, kSeqLen);
  ASSERT_TRUE(read.ok()) << read.status();
  const DecoderSpec& spec = read->spec;
  const std::map<std::string, int64_t> extents = {{"vocab", spec.vocab_rows},      {"embed", spec.hidden_size},
                                                  {"heads", spec.num_heads},       {"kv_heads", spec.num_kv_heads},
                                                  {"mlp", spec.intermediate_size}, {"head_dim", spec.head_dim}};

  const absl::StatusOr<Graph> graph = BuildDecoder(spec, DecoderBuildOptions(), OpTable());
  ASSERT_TRUE(graph.ok()) << graph.status();
  int64_t num_products = 0;
  for (const Node& node : graph->nodes) {
    if (node.op != Op::kParam) continue;
    const Dims& dims = graph->type(node.results[0]).dims;
    const auto axes = GetAttr<std::vector<std::string>>(node.attrs, "axes");
    ASSERT_EQ(axes.size(), dims.size()) << node.symbol;
    const bool of_experts = std::count(axes.begin(), axes.end(), "experts") > 0;
    int num_split = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (of_experts && axes[d] == "mlp") {
        EXPECT_EQ(spec.experts->intermediate_size, dims[d]) << node.symbol << " dim " << d;
      } else if (node.symbol.find(".shared_expert") != std::string::npos && axes[d] == "mlp") {
        EXPECT_EQ(spec.experts->shared_intermediate_size, dims[d]) << node.symbol << " dim " << d;
      } else if (axes[d] == "experts") {
        EXPECT_EQ(spec.experts->num_experts, dims[d]) << node.symbol << " dim " << d;
      } else if (!axes[d].empty()) {
        EXPECT_EQ(extents.at(axes[d]), dims[d]) << node.symbol << " dim " << d;
      }
      num_split += axes[d] == "vocab" || axes[d] == "heads" || axes[d] == "kv_heads" || axes[d] == "mlp" ? 1 : 0;
    }
    const bool is_router = spec.experts.has_value() && dims == Dims{spec.experts->num_experts, spec.hidden_size};
    const bool is_positions = spec.learned_positions > 0 && dims == Dims{spec.learned_positions, spec.hidden_size};
    // Of latents that all heads read: each rank needs them whole.
    const bool is_latent = node.symbol.find("_a_proj") != std::string::npos;
    // Of what ranks sum: added once, whole.
    const bool is_sums_bias = node.symbol.find("down_proj_bias") != std::string::npos;
    if (dims.size() < 2 || is_router || is_positions || is_latent || is_sums_bias) continue;
    EXPECT_EQ(num_split, 1) << node.symbol << ": tensor parallelism splits one dim of each matrix";
    ++num_products;
  }
  EXPECT_GE(num_products, 1 + 4 * spec.num_layers);
}

std::vector<std::string> FamilyNames() {
  std::vector<std::string> names;
  for (const Family& family : Families()) names.push_back(family.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Families, FamilyTest, testing::ValuesIn(FamilyNames()),
                         [](const auto& info) { return info.param; });

// A window that holds a whole sample leaves nothing out.
TEST(ReadModelConfigTest, LargeWindowsChangeNothing) {
  const json mistral = With(BaseConfig("mistral"), {{"sliding_window", nullptr}});
  for (const json& window : {json(kSeqLen), json(4096)}) {
    EXPECT_EQ(TextOf(With(mistral, {{"sliding_window", window}})).value(), TextOf(mistral).value());
  }
  const json qwen2 = BaseConfig("qwen2");
  const json sliding = With(qwen2, {{"use_sliding_window", true}, {"max_window_layers", 0}});
  EXPECT_EQ(TextOf(With(sliding, {{"sliding_window", kSeqLen}})).value(), TextOf(qwen2).value());
  EXPECT_EQ(TextOf(With(sliding, {{"sliding_window", nullptr}})).value(), TextOf(qwen2).value());
  EXPECT_EQ(
      TextOf(With(sliding, {{"sliding_window", 1}, {"layer_types", {"full_attention", "full_attention"}}})).value(),
      TextOf(qwen2).value());
}

// The windows of each layer's attention; 0: none.
std::vector<int64_t> WindowsOf(const json& config) {
  const absl::StatusOr<ReadFamily> read = ReadModelConfig(config, kSeqLen);
  EXPECT_TRUE(read.ok()) << read.status();
  DecoderBuildOptions options;
  options.seq_len = kSeqLen;
  const absl::StatusOr<Graph> graph = BuildDecoder(read->spec, options, OpTable());
  EXPECT_TRUE(graph.ok()) << graph.status();
  std::vector<int64_t> windows;
  for (const Node& node : graph->nodes) {
    if (node.op == "attention") windows.push_back(GetAttr<int64_t>(node.attrs, "window"));
  }
  return windows;
}

TEST(ReadModelConfigTest, WindowsAreOfTheLayersThatHaveThem) {
  using Windows = std::vector<int64_t>;
  const json three = {{"num_hidden_layers", 3}, {"sliding_window", 5}};
  EXPECT_EQ(WindowsOf(With(BaseConfig("mistral"), three)), (Windows{5, 5, 5}));
  const json qwen = With(BaseConfig("qwen2"), With(three, {{"use_sliding_window", true}, {"max_window_layers", 2}}));
  EXPECT_EQ(WindowsOf(qwen), (Windows{0, 0, 5}));
  const json types = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(WindowsOf(With(qwen, {{"layer_types", types}})), (Windows{5, 0, 5}));
  const json slides = With(three, {{"use_sliding_window", true}, {"max_window_layers", 2}});
  EXPECT_EQ(WindowsOf(With(BaseConfig("qwen2_moe"), slides)), (Windows{5, 0, 0}));
  EXPECT_EQ(WindowsOf(With(BaseConfig("qwen3_moe"), slides)), (Windows{5, 5, 5}));
  EXPECT_EQ(WindowsOf(With(BaseConfig("gemma2"), three)), (Windows{5, 0, 5}));
  EXPECT_EQ(WindowsOf(With(BaseConfig("gpt_oss"), three)), (Windows{5, 0, 5}));
  EXPECT_EQ(WindowsOf(With(BaseConfig("gemma3_text"), With(three, {{"sliding_window_pattern", 3}}))),
            (Windows{5, 5, 0}));
  EXPECT_EQ(WindowsOf(With(BaseConfig("olmo3"), With(three, {{"layer_types", nullptr}}))), (Windows{5, 5, 5}));
  EXPECT_EQ(WindowsOf(With(BaseConfig("smollm3"),
                           With(three, {{"use_sliding_window", true}, {"no_rope_layers", {1, 0, 1}}}))),
            (Windows{0, 5, 0}));
}

// Layers have the cosines of their type, or none.
TEST(ReadModelConfigTest, PositionsAreOfTheLayersThatHaveThem) {
  const auto positions = [](const json& config) {
    std::string found;
    for (int64_t layer = 0; layer < 3; ++layer)
      found += "rl-"[ReadModelConfig(config, kSeqLen)->spec.LayerAt(layer).positions];
    return found;
  };
  const json three = {{"num_hidden_layers", 3}};
  EXPECT_EQ(positions(With(BaseConfig("smollm3"), With(three, {{"no_rope_layer_interval", 2}}))), "r-r");
  EXPECT_EQ(positions(With(BaseConfig("gemma3_text"), three)), "lrl");
  // A window that holds a whole sample, but frequencies of its own.
  EXPECT_EQ(positions(With(BaseConfig("gemma3_text"), With(three, {{"sliding_window", 4096}}))), "lrl");
  EXPECT_EQ(positions(With(BaseConfig("olmo3"), With(three, {{"layer_types", nullptr}}))), "rrr");
}

// How random weights are drawn, by name: transformers' _init_weights.
TEST(ReadModelConfigTest, RandomWeightsAreDrawnAsTransformersDoes) {
  const auto inits = [](const std::string& family) {
    std::map<std::string, std::string> by_name;
    const absl::StatusOr<ReadFamily> read = ReadModelConfig(BaseConfig(family), kSeqLen);
    const absl::StatusOr<Graph> graph = BuildDecoder(read->spec, DecoderBuildOptions(), OpTable());
    for (const Node& node : graph->nodes) {
      if (node.op == Op::kParam) by_name[node.symbol] = GetAttr<std::string>(node.attrs, "init");
    }
    return by_name;
  };
  std::map<std::string, std::string> gpt2 = inits("gpt2");  // of two layers: 0.02 / sqrt(4) where a branch ends
  EXPECT_EQ(gpt2["transformer.wpe.weight"], "normal(0.02)");
  EXPECT_EQ(gpt2["transformer.h.1.attn.c_attn.weight"], "normal(0.02)");
  EXPECT_EQ(gpt2["transformer.h.1.attn.c_proj.weight"], "normal(0.01)");
  EXPECT_EQ(gpt2["transformer.h.0.mlp.c_proj.weight"], "normal(0.01)");
  EXPECT_EQ(gpt2["transformer.h.0.mlp.c_proj.bias"], "zeros");
  EXPECT_EQ(gpt2["transformer.h.0.ln_1.weight"], "ones");
  EXPECT_EQ(inits("starcoder2")["model.layers.0.self_attn.q_proj.weight"], "normal(0.018042)");
  for (const char* family : {"gemma2", "gemma3_text"}) {
    std::map<std::string, std::string> gemma = inits(family);
    EXPECT_EQ(gemma["model.embed_tokens.weight"], "normal(0.02)") << family;
    EXPECT_EQ(gemma["model.layers.1.pre_feedforward_layernorm.weight"], "zeros") << family;  // 1 + 0
    EXPECT_EQ(gemma["model.norm.weight"], "zeros") << family;
  }
  EXPECT_EQ(inits("gemma3_text")["model.layers.1.self_attn.k_norm.weight"], "zeros");
  for (const char* family : {"qwen2_moe", "granitemoe", "deepseek_v2", "deepseek_v3"}) {
    for (const auto& [name, init] : inits(family)) {
      const bool is_norm = name.find("norm") != std::string::npos;
      const bool is_bias = absl::EndsWith(name, "bias");
      EXPECT_EQ(init, is_norm ? "ones" : is_bias ? "zeros" : "normal(0.02)") << family << " " << name;
    }
  }
  for (const auto& [name, init] : inits("gpt_oss")) {
    const bool is_norm = name.find("norm") != std::string::npos;
    const bool is_zero = absl::EndsWith(name, "bias") && !absl::EndsWith(name, "mlp.router.bias");
    EXPECT_EQ(init, is_norm ? "ones" : is_zero ? "zeros" : "normal(0.02)") << name;
  }
  EXPECT_EQ(inits("gpt_oss").count("model.layers.1.self_attn.sinks"), 1u);
  EXPECT_EQ(inits("deepseek_v3").count("model.layers.1.mlp.gate.e_score_correction_bias"), 1u);
}

TEST(ReadModelConfigTest, KeysThatSayWhatIsTrueAnywayChangeNothing) {
  const json qwen = BaseConfig("qwen3_moe");
  const json said = {{"qkv_bias", false}, {"use_qk_norm", true}, {"shared_expert_intermediate_size", 0}};
  EXPECT_EQ(TextOf(With(qwen, said)).value(), TextOf(qwen).value());
  json yarn = With(BaseConfig("llama"), {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}});
  const std::string text = TextOf(yarn).value();
  yarn["rope_scaling"]["finetuned"] = true;
  EXPECT_EQ(TextOf(yarn).value(), text);
  yarn["rope_scaling"]["finetuned"] = false;
  EXPECT_THAT(std::string(TextOf(yarn).status().message()),
              HasSubstr("rope_scaling: finetuned = false: only frequencies"));
}

// An export has no dtype for it: the job would end without a model.
TEST(ReadModelConfigTest, DtypesThatNoExportHasAreRefused) {
  EXPECT_EQ(TextOf(With(BaseConfig("llama"), {{"dtype", "float64"}})).status().message(),
            "config.json: dtype = \"float64\": trained weights are exported in float32 at most; remove this key: F64 "
            "files are read without it");
}

TEST(ReadModelConfigTest, BothListsOfLongropeAreChecked) {
  const json lists = {{"type", "longrope"}, {"short_factor", {1.0, 2.0}}, {"long_factor", {1.0}}};
  EXPECT_EQ(TextOf(With(BaseConfig("llama"), {{"rope_scaling", lists}})).status().message(),
            "config.json: rope_scaling: short_factor = [1.0,2.0]: has 2 entries; wanted one for each of 3 pairs\n"
            "config.json: rope_scaling: long_factor = [1.0]: has 1 entries; wanted one for each of 3 pairs");
}

TEST(ReadModelConfigTest, GptOssIsStretchedUnlessItSaysOtherwise) {
  const json base = BaseConfig("gpt_oss");
  const json yarn = {{"rope_type", "yarn"},
                     {"factor", 32.0},
                     {"truncate", false},
                     {"original_max_position_embeddings", 4096},
                     {"rope_theta", 150000}};
  EXPECT_EQ(TextOf(With(base, {{"rope_parameters", yarn}, {"experts_per_token", 2}})).value(), TextOf(base).value());
  EXPECT_NE(TextOf(With(base, {{"rope_parameters", {{"rope_type", "default"}}}})).value(), TextOf(base).value());
  const absl::Status packed = TextOf(With(base, {{"quantization_config", {{"quant_method", "mxfp4"}}}})).status();
  EXPECT_THAT(std::string(packed.message()), HasSubstr("MXFP4 weights cannot be trained; take a copy in BF16"));
}

TEST(ReadModelConfigTest, OldOlmoIsNotTransformersOlmo) {
  json config = BaseConfig("hf_olmo");
  config["model_type"] = "olmo";
  const absl::StatusOr<ReadFamily> read = ReadModelConfig(config, kSeqLen);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->family.name, "hf_olmo");
}

TEST(ReadModelConfigTest, BaichuanIsToldApart) {
  json config = BaseConfig("baichuan");
  absl::StatusOr<ReadFamily> read = ReadModelConfig(config, kSeqLen);
  ASSERT_TRUE(read.ok());
  EXPECT_TRUE(read->spec.rotary.has_value());
  EXPECT_EQ(read->spec.head, DecoderSpec::kOwnHead);
  config["vocab_size"] = 125696;
  config.erase("max_position_embeddings");
  read = ReadModelConfig(config, kSeqLen);
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(read->spec.rotary.has_value());
  EXPECT_EQ(read->spec.alibi_slopes.size(), 4u);
  EXPECT_EQ(read->spec.head, DecoderSpec::kNormalizedHead);
}

TEST(ReadModelConfigTest, DropoutNeedsItsInputs) {
  const json config = With(BaseConfig("bloom"), {{"hidden_dropout", 0.25}});
  const absl::StatusOr<std::string> text = TextOf(config);
  ASSERT_TRUE(text.ok());
  EXPECT_THAT(*text, HasSubstr("input \"step\" : i64[]"));
  EXPECT_THAT(*text, HasSubstr("input \"sample\" : i64[2]"));
  EXPECT_THAT(*text, HasSubstr("key=3 rate=0.25 seed=0"));
}

}  // namespace
}  // namespace tacc::graph
