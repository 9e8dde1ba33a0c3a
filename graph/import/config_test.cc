// Every key of config.json is used, harmless by a written list, or refused by name.
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "graph/import/families.h"
#include "graph/import/model_facts.h"
#include "graph/ir/status_macros.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kSeqLen = 8;

const std::set<std::string> kLlamaLike = {"llama",   "mistral", "qwen2", "qwen3",   "olmo",      "olmo2",
                                          "granite", "glm",     "glm4",  "mixtral", "qwen3_moe", "olmoe"};

const std::set<std::string> kMixtures = {"mixtral", "qwen3_moe", "olmoe"};

json BaseConfig(const std::string& family) {
  if (family == "bloom")
    return {{"model_type", "bloom"}, {"vocab_size", 50}, {"hidden_size", 24}, {"n_layer", 2}, {"n_head", 4}};
  if (family == "hf_olmo") {
    return {{"model_type", "hf_olmo"},
            {"vocab_size", 50},
            {"embedding_size", 52},
            {"d_model", 24},
            {"n_layers", 2},
            {"n_heads", 4},
            {"max_sequence_length", 32},
            {"attention_dropout", 0.0},
            {"rope", true}};
  }
  if (family == "chatglm") {
    return {{"model_type", "chatglm"},
            {"padded_vocab_size", 50},
            {"hidden_size", 24},
            {"ffn_hidden_size", 20},
            {"num_layers", 2},
            {"num_attention_heads", 4},
            {"kv_channels", 8},
            {"multi_query_attention", true},
            {"multi_query_group_num", 2},
            {"seq_length", 32}};
  }
  json config = {{"model_type", family},         {"vocab_size", 50},       {"hidden_size", 24},
                 {"intermediate_size", 20},      {"num_hidden_layers", 2}, {"num_attention_heads", 4},
                 {"max_position_embeddings", 32}};
  if (kLlamaLike.count(family) > 0) config["num_key_value_heads"] = 4;
  if (family == "glm" || family == "glm4") config["head_dim"] = 8;
  if (kMixtures.count(family) > 0) {
    config["num_experts"] = 6;
    config["num_experts_per_tok"] = 2;
  }
  if (family == "qwen3_moe") {
    config["moe_intermediate_size"] = 14;
    config["mlp_only_layers"] = {0};
  }
  return config;
}

json With(json config, const json& changes) {
  for (const auto& item : changes.items()) config[item.key()] = item.value();
  return config;
}

// One changed key, and what else the configuration needs for it to matter.
struct Flip {
  std::string key;
  json value;
  json others = json::object();
};

json Rope(const json& parameters) { return {{"rope_parameters", parameters}}; }

std::vector<Flip> CommonFlips() {
  return {{"model_type", "gpt2"},
          {"architectures", {"LlamaForSequenceClassification"}},
          {"dtype", "int8"},
          {"torch_dtype", "float8"},
          {"quantization_config", {{"bits", 4}}},
          {"pruned_heads", {{"0", {1}}}},
          {"is_encoder_decoder", true},
          {"is_decoder", true},
          {"add_cross_attention", true},
          {"cross_attention_hidden_size", 8},
          {"use_bfloat16", true},
          {"chunk_size_feed_forward", 2},
          {"tf_legacy_loss", true},
          {"tie_encoder_decoder", true}};
}

std::vector<Flip> RotaryFlips(const json& partial_factor) {
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 16}};
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 100}};
  std::vector<Flip> flips = {
      {"max_position_embeddings", 7},
      {"rope_theta", 500.0},
      {"partial_rotary_factor", partial_factor},
      {"partial_rotary_factor", 0},
      {"partial_rotary_factor", 1.5},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}},
      {"rope_scaling",
       {{"type", "dynamic"}, {"factor", 3.0}},
       {{"max_position_embeddings", 4}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}},
      {"rope_scaling", {{"type", "longrope"}}},
      {"rope_scaling", {{"type", "linear"}, {"factor", 2.0}}, Rope({{"rope_type", "default"}})},
      {"rope_scaling", {{"type", "linear"}, {"rope_type", "dynamic"}, {"factor", 2.0}}},
      {"rope_scaling", {{"type", "linear"}}},
      {"rope_scaling", "linear"},
      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 77.0}}},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", partial_factor}}},
      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0}}},
      {"rope_parameters", With(llama3, {{"low_freq_factor", 4.0}}), Rope(llama3)},
      {"rope_parameters", With(yarn, {{"rope_theta", 1.0}}), Rope(yarn)},
      {"rope_parameters", {{"rope_type", "default"}, {"surprise", 1}}}};
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    flips.push_back({"rope_parameters", With(llama3, {{key, 3}}), Rope(llama3)});
  }
  for (const auto& [key, value] : std::map<std::string, json>{{"factor", 5.0},
                                                              {"attention_factor", 1.5},
                                                              {"beta_fast", 5.0},
                                                              {"beta_slow", 3.0},
                                                              {"original_max_position_embeddings", 300},
                                                              {"truncate", false},
                                                              {"finetuned", false},
                                                              {"mscale", 0.5},
                                                              {"mscale_all_dim", 0.7}}) {
    json base = yarn;
    if (key == "mscale") base["mscale_all_dim"] = 0.9;
    if (key == "mscale_all_dim") base["mscale"] = 0.9;
    flips.push_back({"rope_parameters", With(base, {{key, value}}), With(Rope(base), {{"head_dim", 64}})});
  }
  return flips;
}

std::vector<Flip> LlamaLikeFlips(const json& partial_factor) {
  std::vector<Flip> flips = RotaryFlips(partial_factor);
  for (const Flip& flip : std::vector<Flip>{{"vocab_size", 49},
                                            {"hidden_size", 32},
                                            {"intermediate_size", 21},
                                            {"num_hidden_layers", 3},
                                            {"num_attention_heads", 2},
                                            {"num_key_value_heads", 2},
                                            {"num_key_value_heads", 3},
                                            {"head_dim", 10},
                                            {"head_dim", 1 << 19},
                                            {"hidden_act", "gelu"},
                                            {"hidden_act", "mish"},
                                            {"initializer_range", 0.1},
                                            {"attention_dropout", 0.1},
                                            {"max_sequence_length", 31},
                                            {"tie_word_embeddings", true}}) {
    flips.push_back(flip);
  }
  return flips;
}

std::vector<Flip> FlipsOf(const std::string& family) {
  std::vector<Flip> flips = CommonFlips();
  auto add = [&](const std::vector<Flip>& more) { flips.insert(flips.end(), more.begin(), more.end()); };
  const bool is_glm = family == "glm" || family == "glm4";
  if (kLlamaLike.count(family) > 0) {
    add(LlamaLikeFlips(is_glm ? 0.25 : 0.5));
    if (family != "olmo") add({{"rms_norm_eps", 1e-3}, {"rms_norm_eps", 0}});
    if (family != "mistral" && family != "qwen2" && family != "mixtral") add({{"attention_bias", !is_glm}});
  }
  if (kMixtures.count(family) > 0) {
    add({{"num_experts", 5},
         {"num_experts", 1 << 17},
         {"num_local_experts", 5},
         {"num_local_experts", 5, {{"num_experts", nullptr}}},
         {"num_experts_per_tok", 3},
         {"num_experts_per_tok", 7},
         {"output_router_logits", true},
         {"router_aux_loss_coef", 0.5, {{"output_router_logits", true}}}});
    if (family != "mixtral") add({{"norm_topk_prob", true}});
  }
  if (family == "mixtral") add({{"router_jitter_noise", 0.1}, {"sliding_window", 7}});
  if (family == "qwen3_moe") {
    add({{"moe_intermediate_size", 15},
         {"decoder_sparse_step", 3},
         {"qkv_bias", true},
         {"use_qk_norm", false},
         {"shared_expert_intermediate_size", 8},
         {"mlp_only_layers", json::array()},
         {"mlp_only_layers", {"0"}},
         {"mlp_only_layers", {-1}}});
  }
  if (family == "llama" || family == "granite") add({{"mlp_bias", true}});
  if (family == "llama") add({{"rope_interleaved", true}});
  if (family == "olmo" || family == "olmoe") add({{"clip_qkv", 8.0}});
  if (family == "mistral") add({{"sliding_window", 7}, {"sliding_window", 0}});
  if (family == "granite") {
    add({{"embedding_multiplier", 12.0},
         {"residual_multiplier", 0.22},
         {"attention_multiplier", 0.015625},
         {"logits_scaling", 8.0},
         {"logits_scaling", 0}});
  }
  if (family == "qwen2") add({{"use_mrope", true}});
  if (family == "qwen2" || family == "qwen3" || family == "qwen3_moe") {
    add({{"use_sliding_window", true, {{"sliding_window", 7}, {"max_window_layers", 1}}},
         {"sliding_window", 7, {{"use_sliding_window", true}, {"max_window_layers", 1}}},
         {"max_window_layers", 1, {{"use_sliding_window", true}, {"sliding_window", 7}}},
         {"layer_types", {"full_attention"}},
         {"layer_types", {"full_attention", "sliding_attention"}},
         {"layer_types",
          {"full_attention", "sliding_attention"},
          {{"use_sliding_window", true}, {"sliding_window", 7}}},
         {"layer_types", {"full_attention", "chunked_attention"}}});
  }
  if (family == "chatglm") {
    add({{"padded_vocab_size", 49},
         {"hidden_size", 32},
         {"ffn_hidden_size", 21},
         {"num_layers", 3},
         {"num_hidden_layers", 3},
         {"num_attention_heads", 2},
         {"kv_channels", 16},
         {"kv_channels", 6},
         {"kv_channels", nullptr, {{"hidden_size", 48}}},
         {"multi_query_attention", false},
         {"multi_query_group_num", 1},
         {"multi_query_group_num", 3},
         {"add_bias_linear", true},
         {"add_qkv_bias", true},
         {"rope_ratio", 16},
         {"original_rope", false},
         {"seq_length", 7},
         {"layernorm_epsilon", 1e-3},
         {"layernorm_epsilon", 0},
         {"rmsnorm", false},
         {"apply_residual_connection_post_layernorm", true},
         {"post_layer_norm", false},
         {"hidden_dropout", 0.1},
         {"attention_dropout", 0.1},
         {"tie_word_embeddings", true},
         {"quantization_bit", 4},
         {"pre_seq_len", 128}});
  } else if (family == "bloom") {
    add({{"vocab_size", 49},
         {"hidden_size", 32},
         {"n_embed", 32},
         {"n_layer", 3},
         {"num_hidden_layers", 3},
         {"n_head", 2},
         {"num_attention_heads", 2},
         {"n_inner", 5},
         {"layer_norm_epsilon", 1e-6},
         {"layer_norm_epsilon", 0},
         {"initializer_range", 0.1},
         {"apply_residual_connection_post_layernorm", true},
         {"hidden_dropout", 0.1},
         {"attention_dropout", 0.1},
         {"tie_word_embeddings", false}});
  } else if (family == "baichuan") {
    add({{"vocab_size", 49},
         {"hidden_size", 32},
         {"intermediate_size", 21},
         {"num_hidden_layers", 3},
         {"num_attention_heads", 2},
         {"hidden_act", "relu"},
         {"initializer_range", 0.1},
         {"rms_norm_eps", 1e-5},
         {"max_position_embeddings", 7},
         {"max_position_embeddings", nullptr},
         {"model_max_length", 7, {{"max_position_embeddings", nullptr}}},
         {"norm_head", true},
         {"tie_word_embeddings", true},
         {"z_loss_weight", 0.001}});
  } else if (family == "hf_olmo") {
    const json no_rope = {{"rope", false}};
    const json gated_inits = {{"init_fn", "full_megatron"}};
    add({{"d_model", 32},
         {"n_layers", 3},
         {"n_heads", 2},
         {"n_kv_heads", 2},
         {"multi_query_attention", true},
         {"mlp_ratio", 6},
         {"multi_query_attention", true, {{"n_kv_heads", 4}}},
         {"mlp_hidden_size", 20},
         {"mlp_hidden_size", 21},
         {"activation_type", "gelu"},
         {"activation_type", "geglu"},
         {"block_type", "llama"},
         {"block_group_size", 2},
         {"block_group_size", 3},
         {"alibi", true},
         {"alibi", true, no_rope},
         {"alibi_bias_max", 4.0, {{"rope", false}, {"alibi", true}}},
         {"rope", false},
         {"rope_theta", 500},
         {"max_sequence_length", 7},
         {"max_sequence_length", 9, no_rope},
         {"attention_dropout", 0.1},
         {"attention_dropout", nullptr},
         {"residual_dropout", 0.2},
         {"embedding_dropout", 0.2},
         {"embedding_layer_norm", true},
         {"layer_norm_type", "rms"},
         {"layer_norm_type", "amd_compatible"},
         {"layer_norm_with_affine", false},
         {"layer_norm_eps", 1e-6},
         {"layer_norm_eps", 0},
         {"attention_layer_norm", true},
         {"attention_layer_norm_with_affine", false, {{"attention_layer_norm", true}}},
         {"include_bias", false},
         {"bias_for_layer_norm", false},
         {"scale_logits", true},
         {"vocab_size", 53},
         {"vocab_size", 49, {{"embedding_size", nullptr}}},
         {"embedding_size", 60},
         {"weight_tying", false},
         {"init_fn", "mitchell"},
         {"init_fn", "kaiming_normal"},
         {"init_std", 0.1},
         {"init_cutoff_factor", 2.0},
         {"emb_init_std", 0.3},
         {"scale_emb_init", true, gated_inits},
         {"clip_qkv", 8.0},
         {"norm_after", true}});
  }
  return flips;
}

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
  const double batch = 3, seq = 8, hidden = 24, heads = 4, layers = 2;
  double kv_heads = 4, head_dim = 6, inner = 20, mlp_matrices = 3, rows = 50;
  if (kLlamaLike.count(GetParam()) > 0) {
    kv_heads = 2;
    config["num_key_value_heads"] = 2;
    head_dim = 10;
    config["head_dim"] = 10;
  }
  if (GetParam() == "chatglm") {
    kv_heads = 2;
    head_dim = 8;
  }
  if (GetParam() == "bloom") {
    inner = 96;
    mlp_matrices = 2;
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
  const double projections = hidden * (heads + 2 * kv_heads) * head_dim + heads * head_dim * hidden;
  const double attention = 2 * heads * head_dim * seq / 2;  // per token
  double mlps = layers * mlp_matrices * hidden * inner;
  if (kMixtures.count(GetParam()) > 0) {  // two of six experts, and the router
    const double dense_layers = GetParam() == "qwen3_moe" ? 1 : 0;
    mlps = dense_layers * 3 * hidden * inner;
    if (GetParam() == "qwen3_moe") inner = 14;
    mlps += (layers - dense_layers) * (hidden * 6 + 2 * 3 * hidden * inner);
  }
  const double by_hand = 2 * batch * seq * (layers * (projections + attention) + mlps + hidden * rows);
  EXPECT_NEAR(counted, by_hand, 1e-3 * by_hand);
}

// Every dim of a weight that layouts may split says what it is, by its extent.
TEST_P(FamilyTest, WeightsSayWhatTheirDimsAre) {
  json config = BaseConfig(GetParam());
  if (kLlamaLike.count(GetParam()) > 0) config["num_key_value_heads"] = 2;
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
    const bool of_experts = node.symbol.find('*') != std::string::npos;
    int num_split = 0;
    for (size_t d = 0; d < dims.size(); ++d) {
      if (of_experts && axes[d] == "mlp") {
        EXPECT_EQ(spec.experts->intermediate_size, dims[d]) << node.symbol << " dim " << d;
      } else if (axes[d] == "experts") {
        EXPECT_EQ(spec.experts->num_experts, dims[d]) << node.symbol << " dim " << d;
      } else if (!axes[d].empty()) {
        EXPECT_EQ(extents.at(axes[d]), dims[d]) << node.symbol << " dim " << d;
      }
      num_split += axes[d] == "vocab" || axes[d] == "heads" || axes[d] == "kv_heads" || axes[d] == "mlp" ? 1 : 0;
    }
    const bool is_router = spec.experts.has_value() && dims == Dims{spec.experts->num_experts, spec.hidden_size};
    if (dims.size() < 2 || is_router) continue;
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
  EXPECT_EQ(
      TextOf(With(BaseConfig("mistral"), {{"sliding_window", 7}})).status().message(),
      "config.json: sliding_window = 7: all layers attend over a window of 7 tokens, which is supported only where "
      "it holds a whole sample, and samples have data.seq_len = 8");
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

// Published configurations, whole, with the number of parameters that their model cards and weight files have.
struct Published {
  const char* name;
  const char* config;
  int64_t num_parameters;
};

const Published kPublished[] = {
    {"OLMo-1B",
     R"({"activation_type": "swiglu", "alibi": false, "alibi_bias_max": 8.0, "architectures": ["OLMoForCausalLM"],
      "attention_dropout": 0.0, "attention_layer_norm": false, "attention_layer_norm_with_affine": false,
      "bias_for_layer_norm": false, "block_group_size": 1, "block_type": "sequential", "clip_qkv": null, "d_model": 2048,
      "embedding_dropout": 0.0, "embedding_size": 50304, "eos_token_id": 50279, "flash_attention": true, "include_bias": false,
      "init_cutoff_factor": null, "init_device": "meta", "init_fn": "mitchell", "init_std": 0.02, "layer_norm_type": "default",
      "layer_norm_with_affine": false, "max_sequence_length": 2048, "mlp_hidden_size": 16384, "mlp_ratio": 8,
      "model_type": "hf_olmo", "multi_query_attention": false, "n_heads": 16, "n_layers": 16, "pad_token_id": 1,
      "precision": "amp_bf16", "residual_dropout": 0.0, "rope": true, "rope_full_precision": true, "scale_logits": false,
      "transformers_version": "4.37.1", "use_cache": true, "vocab_size": 50280, "weight_tying": true})",
     1176764416},
    {"Llama-3.1-8B",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
      "eos_token_id": 128001, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.43.0.dev0",
      "use_cache": true, "vocab_size": 128256})",
     8030261248},
    {"Qwen3-0.6B",
     R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
      "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
      "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false, "vocab_size": 151936})",
     596049920},
    {"Mistral-7B-v0.1",
     R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
      "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})",
     7241732096},
    {"Qwen2.5-0.5B",
     R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
      "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
      "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
      "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
      "sliding_window": 32768, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
      "use_cache": true, "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})",
     494032768},
    {"OLMo-2-1124-7B",
     R"({"architectures": ["Olmo2ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "eos_token_id": 100257,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008,
      "max_position_embeddings": 4096, "model_type": "olmo2", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 32, "pad_token_id": 100277, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 500000,
      "tie_word_embeddings": false, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "use_cache": true,
      "vocab_size": 100352})",
     7298617344},
    {"SmolLM2-135M",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 0,
      "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
      "intermediate_size": 1536, "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3, "pretraining_tp": 1,
      "rms_norm_eps": 1e-05, "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.40.1",
      "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}}, "use_cache": true,
      "vocab_size": 49152})",
     134515008},
    {"TinyLlama-1.1B",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 5632,
      "max_position_embeddings": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 22,
      "num_key_value_heads": 4, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.35.0", "use_cache": true,
      "vocab_size": 32000})",
     1100048384},
    {"llama-7b, an early conversion",
     R"({"architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
      "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 2048,
      "max_sequence_length": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
      "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "torch_dtype": "float16",
      "transformers_version": "4.28.0.dev0", "use_cache": true, "vocab_size": 32000})",
     6738415616},
    {"Llama-3.2-1B, saved by unsloth",
     R"({"_attn_implementation_autoset": true, "architectures": ["LlamaForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001, "head_dim": 64, "hidden_act": "silu",
      "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192, "max_position_embeddings": 131072,
      "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
      "pad_token_id": 128004, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0,
      "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.49.0",
      "unsloth_fixed": true, "unsloth_version": "2025.3.19", "use_cache": true, "vocab_size": 128256})",
     1235814400},
    {"granite-3.1-2b-base",
     R"({"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.1,
      "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
      "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
      "logits_scaling": 8.0, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "granite",
      "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
      "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 5000000.0,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.47.0", "use_cache": true,
      "vocab_size": 49155})",
     2533531648},
    {"GLM-4-9B-0414",
     R"({"architectures": ["Glm4ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "eos_token_id": [151329, 151336, 151338], "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 13696, "max_position_embeddings": 32768, "model_type": "glm4",
      "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "pad_token_id": 151329,
      "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.52.0.dev0", "use_cache": true, "vocab_size": 151552})",
     9400094720},
    {"granite-3.0-2b-base",
     R"({"architectures": ["GraniteForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
      "attention_multiplier": 0.015625, "bos_token_id": 0, "embedding_multiplier": 12.0, "eos_token_id": 0,
      "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 8192,
      "logits_scaling": 8.0, "max_position_embeddings": 4096, "mlp_bias": false, "model_type": "granite",
      "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "pad_token_id": 0,
      "residual_multiplier": 0.22, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.46.0.dev0", "use_cache": true,
      "vocab_size": 49155})",
     2533531648},
    {"glm-4-9b-hf",
     R"({"architectures": ["GlmForCausalLM"], "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": [151329, 151336],
      "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 13696,
      "max_position_embeddings": 8192, "model_type": "glm", "num_attention_heads": 32, "num_hidden_layers": 40,
      "num_key_value_heads": 2, "pad_token_id": 151329, "rms_norm_eps": 1.5625e-07, "rope_theta": 10000.0,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.47.0.dev0", "use_cache": true,
      "vocab_size": 151552})",
     9399951360},
    {"chatglm3-6b",
     R"({"_name_or_path": "THUDM/chatglm3-6b", "model_type": "chatglm", "architectures": ["ChatGLMModel"],
      "auto_map": {"AutoConfig": "configuration_chatglm.ChatGLMConfig"}, "add_bias_linear": false, "add_qkv_bias": true,
      "apply_query_key_layer_scaling": true, "apply_residual_connection_post_layernorm": false, "attention_dropout": 0.0,
      "attention_softmax_in_fp32": true, "bias_dropout_fusion": true, "ffn_hidden_size": 13696,
      "fp32_residual_connection": false, "hidden_dropout": 0.0, "hidden_size": 4096, "kv_channels": 128,
      "layernorm_epsilon": 1e-05, "multi_query_attention": true, "multi_query_group_num": 2, "num_attention_heads": 32,
      "num_layers": 28, "original_rope": true, "padded_vocab_size": 65024, "post_layer_norm": true, "rmsnorm": true,
      "seq_length": 8192, "use_cache": true, "torch_dtype": "float16", "transformers_version": "4.27.1",
      "tie_word_embeddings": false, "eos_token_id": 2, "pad_token_id": 0})",
     6243584000},
    {"Mixtral-8x7B",
     R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
      "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
      "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": false,
      "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": null,
      "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true,
      "vocab_size": 32000})",
     46702792704},
    {"Qwen3-30B-A3B",
     R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
      "decoder_sparse_step": 1, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960, "max_window_layers": 48,
      "mlp_only_layers": [], "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true,
      "num_attention_heads": 32, "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
      "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 151936})",
     30532122624},
    {"OLMoE-1B-7B",
     R"({"architectures": ["OlmoeForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "clip_qkv": null,
      "eos_token_id": 50279, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 1024,
      "max_position_embeddings": 4096, "model_type": "olmoe", "norm_topk_prob": false, "num_attention_heads": 16,
      "num_experts": 64, "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16,
      "output_router_logits": false, "pad_token_id": 1, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 10000.0,
      "router_aux_loss_coef": 0.01, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "use_cache": true,
      "vocab_size": 50304})",
     6919161856},
    {"bloom-560m",
     R"({"apply_residual_connection_post_layernorm": false, "attention_dropout": 0.0, "attention_softmax_in_fp32": true,
      "bias_dropout_fusion": true, "bos_token_id": 1, "eos_token_id": 2, "hidden_dropout": 0.0, "initializer_range": 0.02,
      "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": true, "model_type": "bloom", "n_embed": 1024, "n_inner": null,
      "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1, "skip_bias_add": true,
      "skip_bias_add_qkv": false, "transformers_version": "4.20.0", "unk_token_id": 0, "use_cache": true, "vocab_size": 250880})",
     559214592},
    {"Baichuan2-7B",
     R"({"architectures": ["BaichuanForCausalLM"], "auto_map": {"AutoConfig": "configuration_baichuan.BaichuanConfig"},
      "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
      "intermediate_size": 11008, "max_position_embeddings": 4096, "model_max_length": 4096, "model_type": "baichuan",
      "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": 0, "rms_norm_eps": 1e-06,
      "_from_model_config": true, "tie_word_embeddings": false, "tokenizer_class": "BaichuanTokenizer",
      "torch_dtype": "bfloat16", "transformers_version": "4.29.2", "use_cache": true, "vocab_size": 125696})",
     7505973248},
    {"Baichuan-13B",
     R"({"_from_model_config": true, "architectures": ["BaichuanForCausalLM"], "bos_token_id": 1, "eos_token_id": 2,
      "gradient_checkpointing": [false], "hidden_act": "silu", "hidden_size": 5120, "initializer_range": 0.02,
      "intermediate_size": 13696, "model_max_length": 4096, "model_type": "baichuan", "num_attention_heads": 40,
      "num_hidden_layers": 40, "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.29.2", "use_cache": true, "vocab_size": 64000})",
     13264901120},
};

TEST(ReadModelConfigTest, PublishedModelsHaveTheirParameters) {
  for (const Published& published : kPublished) {
    const absl::StatusOr<ReadFamily> read = ReadModelConfig(json::parse(published.config), kSeqLen);
    EXPECT_TRUE(read.ok()) << published.name << ": " << read.status();
    if (!read.ok()) continue;
    const absl::StatusOr<Graph> graph = BuildDecoder(read->spec, DecoderBuildOptions(), OpTable());
    ASSERT_TRUE(graph.ok()) << published.name << ": " << graph.status();
    int64_t num_parameters = 0;
    for (const Node& node : graph->nodes) {
      if (node.op == Op::kParam) num_parameters += graph->type(node.results[0]).num_elements();
    }
    EXPECT_EQ(num_parameters, published.num_parameters) << published.name;
  }
}

}  // namespace
}  // namespace tacc::graph
