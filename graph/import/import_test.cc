#include "graph/import/import.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "graph/import/testing/model_folder.h"
#include "graph/ir/text.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json LlamaConfig() {
  return {{"model_type", "llama"},    {"vocab_size", 11},
          {"hidden_size", 8},         {"intermediate_size", 6},
          {"num_hidden_layers", 1},   {"num_attention_heads", 2},
          {"num_key_value_heads", 1}, {"max_position_embeddings", 32}};
}

Tensors LlamaTensors() {
  const std::string layer = "model.layers.0.";
  return {{"model.embed_tokens.weight", {"F32", {11, 8}}},
          {layer + "self_attn.q_proj.weight", {"F32", {8, 8}}},
          {layer + "self_attn.k_proj.weight", {"F32", {4, 8}}},
          {layer + "self_attn.v_proj.weight", {"F32", {4, 8}}},
          {layer + "self_attn.o_proj.weight", {"F32", {8, 8}}},
          {layer + "mlp.gate_proj.weight", {"F32", {6, 8}}},
          {layer + "mlp.up_proj.weight", {"F32", {6, 8}}},
          {layer + "mlp.down_proj.weight", {"F32", {8, 6}}},
          {layer + "input_layernorm.weight", {"F32", {8}}},
          {layer + "post_attention_layernorm.weight", {"F32", {8}}},
          {"model.norm.weight", {"F32", {8}}},
          {"lm_head.weight", {"F32", {11, 8}}}};
}

class ImportTest : public testing::Test {
 protected:
  absl::StatusOr<ImportedModel> Import(ImportOptions::Weights weights = ImportOptions::Weights::kAuto) {
    ImportOptions options;
    options.batch = 2;
    options.seq_len = 4;
    options.weights = weights;
    return ImportModel(folder_.path(), options, ops_);
  }
  std::string Error(ImportOptions::Weights weights = ImportOptions::Weights::kAuto) {
    const absl::Status status = Import(weights).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status) || absl::IsNotFound(status)) << status;
    return absl::StrReplaceAll(status.message(), {{folder_.path(), "DIR"}});
  }

  OpTable ops_;
  ModelFolder folder_;
};

TEST_F(ImportTest, TheClassIsTheFoldersOrItsFamilys) {
  nlohmann::json config = LlamaConfig();
  for (const nlohmann::json& none : {nlohmann::json(), nlohmann::json::array()}) {
    config["architectures"] = none;
    folder_.WriteConfig(config);
    EXPECT_EQ(Import(ImportOptions::Weights::kRandom).value().architecture, "LlamaForCausalLM");
  }
  config["architectures"] = {"LLaMAForCausalLM"};
  folder_.WriteConfig(config);
  EXPECT_EQ(Import(ImportOptions::Weights::kRandom).value().architecture, "LLaMAForCausalLM");
}

// What training computes, however config.json says it.
TEST_F(ImportTest, FactsAreOfTheMathematicsAlone) {
  const auto facts = [&](const json& config) {
    folder_.WriteConfig(config);
    const absl::StatusOr<ImportedModel> model = Import();
    EXPECT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(model->config_json, config.dump());
    return model->facts;
  };
  folder_.WriteTensors(LlamaTensors());
  const json config = LlamaConfig();
  const std::map<std::string, std::string> before = facts(config);
  EXPECT_EQ(before.at("norm_eps"), "1e-06");
  EXPECT_EQ(before.at("rope_theta"), "10000.0");
  EXPECT_EQ(before.at("num_attention_heads"), "2");
  json saved_again = config;
  saved_again.update({{"transformers_version", "5.0.0"},
                      {"_name_or_path", "elsewhere"},
                      {"dtype", "float32"},
                      {"use_cache", false},
                      {"architectures", {"LlamaForCausalLM"}},
                      {"max_position_embeddings", 64},
                      {"rms_norm_eps", 1e-6},
                      {"hidden_act", "swish"},
                      {"head_dim", 4},
                      {"initializer_range", 0.5},
                      {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 10000}}}});
  EXPECT_EQ(facts(saved_again), before);
  for (const auto& [key, value] : std::map<std::string, json>{
           {"rms_norm_eps", 1e-5}, {"rope_theta", 500.0}, {"hidden_act", "gelu"}, {"rope_scaling", nullptr}}) {
    json changed = config;
    changed[key] = value;
    EXPECT_EQ(facts(changed) == before, value.is_null()) << key;
  }
}

// The edit that the import's own note advises.
TEST_F(ImportTest, FactsKnowAHeadThatIsNotTied) {
  json config = LlamaConfig();
  folder_.WriteTensors(LlamaTensors(), {{"lm_head.weight", std::string("\0\0\x80\x3f", 4)}});
  config["tie_word_embeddings"] = true;
  folder_.WriteConfig(config);
  const absl::StatusOr<ImportedModel> tied = Import();
  ASSERT_TRUE(tied.ok()) << tied.status();
  config["tie_word_embeddings"] = false;
  folder_.WriteConfig(config);
  EXPECT_EQ(Import()->facts, tied->facts);
  EXPECT_EQ(tied->facts.at("head"), "own");
}

TEST_F(ImportTest, PretrainedWhenThereAreSafetensors) {
  folder_.WriteConfig(LlamaConfig());
  folder_.WriteTensors(LlamaTensors());
  const absl::StatusOr<ImportedModel> model = Import();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->weights, ImportOptions::Weights::kPretrained);
  EXPECT_EQ(model->family, "llama");
  EXPECT_EQ(model->vocab_size, 11);
  EXPECT_EQ(model->num_parameters, 2 * 11 * 8 + 2 * 64 + 2 * 32 + 3 * 48 + 3 * 8);
  EXPECT_THAT(model->units, testing::ElementsAre("model.layers.0"));
  EXPECT_THAT(model->layer_classes, testing::ElementsAre("LlamaDecoderLayer"));
  const std::string text = Print(model->forward);
  EXPECT_THAT(text, HasSubstr("param \"model.layers.0.self_attn.k_proj.weight\" axes=[kv_heads,head_dim,embed] "
                              "init=\"normal(0.02)\" stored=[4,8] : f32[1,4,8]"));
  EXPECT_EQ(model->residual_module, "model.embed_tokens");
  EXPECT_THAT(text, HasSubstr("output \"loss\""));
  EXPECT_THAT(text, HasSubstr("output \"target_tokens\""));
}

TEST_F(ImportTest, WithoutWeightsAsksForRandom) {
  folder_.WriteConfig(LlamaConfig());
  EXPECT_EQ(Error(), "DIR has no model.safetensors; to train from scratch set model.weights: random");
  EXPECT_TRUE(Import(ImportOptions::Weights::kRandom).ok());
}

// Weights may be there: it is not said that there are none.
TEST_F(ImportTest, AFolderThatCannotBeListedIsSaid) {
  folder_.WriteConfig(LlamaConfig());
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0311));
  const uid_t user = geteuid();
  if (user == 0) ASSERT_EQ(seteuid(65534), 0);  // Root may list all.
  const std::string error = Error();
  ASSERT_EQ(seteuid(user), 0);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms(0755));
  EXPECT_EQ(error, "DIR: cannot be listed: Permission denied");
}

TEST_F(ImportTest, PickledWeightsAreConverted) {
  folder_.WriteConfig(LlamaConfig());
  folder_.Write("pytorch_model.bin", "PK");
  EXPECT_THAT(Error(), HasSubstr("python -m tacc convert DIR --out DIR-safetensors"));
}

TEST_F(ImportTest, ListsAllProblemsOfTheWeights) {
  json config = LlamaConfig();
  config["dtype"] = "float32";
  folder_.WriteConfig(config);
  Tensors tensors = LlamaTensors();
  tensors.erase("model.norm.weight");
  tensors["model.layers.1.mlp.up_proj.weight"] = {"F32", {6, 8}};
  tensors["model.embed_tokens.weight"].second = {12, 8};
  tensors["lm_head.weight"].first = "I32";
  tensors["model.layers.0.mlp.gate_proj.weight"].first = "BF16";
  folder_.WriteTensors(tensors);
  EXPECT_EQ(
      Error(),
      "DIR/*.safetensors: tensor \"model.norm.weight\" [8] is missing\n"
      "DIR/model.safetensors: tensor \"model.layers.1.mlp.up_proj.weight\" [6,8] is not part of the model that "
      "config.json describes\n"
      "DIR/model.safetensors: tensor \"model.embed_tokens.weight\" has shape [12,8], but by config.json it is [11,8]\n"
      "DIR/model.safetensors: tensor \"model.layers.0.mlp.gate_proj.weight\" is BF16, but config.json says dtype F32; "
      "correct or remove that key\n"
      "DIR/model.safetensors: tensor \"lm_head.weight\" is I32; wanted F32, BF16, F16 or F64");
}

TEST_F(ImportTest, DamagedFilesAreNamed) {
  folder_.WriteConfig(LlamaConfig());
  const std::string whole = ModelFolder::Safetensors(LlamaTensors());
  folder_.Write("model.safetensors", whole.substr(0, whole.size() - 1));
  EXPECT_THAT(Error(), HasSubstr("DIR/model.safetensors: the file is cut short: tensor \"model.norm.weight\""));
  folder_.Write("model.safetensors", whole.substr(0, 100));
  EXPECT_THAT(Error(), HasSubstr("DIR/model.safetensors: the file is cut short inside its header: 100 bytes"));
  folder_.Write("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
  EXPECT_THAT(Error(), HasSubstr("DIR/model.safetensors: this is a pointer of git-lfs"));
  folder_.Write("model.safetensors", "abc");
  EXPECT_THAT(Error(), HasSubstr("not a safetensors file: 3 bytes"));
  folder_.Write("model.safetensors", std::string(200, 'x'));
  EXPECT_THAT(Error(), HasSubstr("not a safetensors file: its header would have"));
  folder_.Write("model.safetensors", std::string("\x04\0\0\0\0\0\0\0[1,]", 12));
  EXPECT_THAT(Error(), HasSubstr("its header is not a JSON object"));
}

TEST_F(ImportTest, ShardedFiles) {
  folder_.WriteConfig(LlamaConfig());
  Tensors first = LlamaTensors(), second;
  second["lm_head.weight"] = first["lm_head.weight"];
  first.erase("lm_head.weight");
  json map;
  for (const auto& entry : first) map[entry.first] = "model-00001-of-00002.safetensors";
  map["lm_head.weight"] = "model-00002-of-00002.safetensors";
  folder_.Write("model.safetensors.index.json", json({{"weight_map", map}}).dump());
  folder_.Write("model-00001-of-00002.safetensors", ModelFolder::Safetensors(first));
  EXPECT_THAT(Error(), HasSubstr("names files that are not there: model-00002-of-00002.safetensors"));
  folder_.Write("model-00002-of-00002.safetensors", ModelFolder::Safetensors(second));
  EXPECT_TRUE(Import().ok()) << Import().status();
  map["lm_head.weight"] = "../../etc/passwd";
  folder_.Write("model.safetensors.index.json", json({{"weight_map", map}}).dump());
  EXPECT_THAT(Error(), HasSubstr("is not the name of a file beside it"));
  map["lm_head.weight"] = std::string(300, 'x');  // longer than a file name may be
  folder_.Write("model.safetensors.index.json", json({{"weight_map", map}}).dump());
  EXPECT_THAT(Error(), HasSubstr("names files that are not there: xxx"));
}

TEST_F(ImportTest, TiedHeadAndOldTablesMayBeStored) {
  json config = LlamaConfig();
  config["tie_word_embeddings"] = true;
  folder_.WriteConfig(config);
  Tensors tensors = LlamaTensors();
  tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = {"F32", {2}};
  folder_.WriteTensors(tensors);
  const absl::StatusOr<ImportedModel> model = Import();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Print(model->forward), Not(HasSubstr("lm_head.weight")));
}

// Pythia's files have the masks of older versions.
TEST_F(ImportTest, OldMasksMayBeStored) {
  json config = {{"model_type", "gpt_neox"}, {"vocab_size", 10}, {"hidden_size", 8}, {"rotary_pct", 0.5}};
  config.update({{"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"intermediate_size", 6}});
  folder_.WriteConfig(config);
  Tensors tensors = {{"gpt_neox.embed_in.weight", {"F32", {10, 8}}}, {"embed_out.weight", {"F32", {10, 8}}}};
  const std::string layer = "gpt_neox.layers.0.";
  for (const auto& [name, dims] :
       std::vector<std::pair<std::string, Dims>>{{layer + "attention.query_key_value", {24, 8}},
                                                 {layer + "attention.dense", {8, 8}},
                                                 {layer + "mlp.dense_h_to_4h", {6, 8}},
                                                 {layer + "mlp.dense_4h_to_h", {8, 6}},
                                                 {layer + "input_layernorm", {8}},
                                                 {layer + "post_attention_layernorm", {8}},
                                                 {"gpt_neox.final_layer_norm", {8}}}) {
    tensors[name + ".weight"] = {"F32", dims};
    tensors[name + ".bias"] = {"F32", {dims[0]}};
  }
  tensors[layer + "attention.bias"] = {"BOOL", {1, 1, 16, 16}};
  tensors[layer + "attention.masked_bias"] = {"F32", {}};
  folder_.WriteTensors(tensors);
  const absl::StatusOr<ImportedModel> model = Import();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->family, "gpt_neox");
}

// 1.5 in each dtype, and its neighbour in bf16.
const std::string kF32Value("\x00\x00\xc0\x3f", 4), kBf16Value("\xc0\x3f", 2), kF16Value("\x00\x3e", 2);
const std::string kF64Value("\0\0\0\0\0\0\xf8\x3f", 8), kOtherBf16Value("\xc1\x3f", 2);

TEST_F(ImportTest, StoredHeadOfTheSameValuesIsTied) {
  json config = LlamaConfig();
  config["tie_word_embeddings"] = true;
  folder_.WriteConfig(config);
  const Values dtypes = {{"F32", kF32Value}, {"BF16", kBf16Value}, {"F16", kF16Value}, {"F64", kF64Value}};
  for (const auto& [dtype, value] : dtypes) {
    Tensors tensors = LlamaTensors();
    tensors["lm_head.weight"].first = dtype;
    folder_.WriteTensors(tensors, {{"model.embed_tokens.weight", kF32Value}, {"lm_head.weight", value}});
    const absl::StatusOr<ImportedModel> model = Import();
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_THAT(Print(model->forward), Not(HasSubstr("lm_head.weight"))) << dtype;
    EXPECT_EQ(model->own_head, false);
    EXPECT_THAT(model->notes, testing::IsEmpty());
  }
}

TEST_F(ImportTest, StoredHeadOfOtherValuesIsKept) {
  json config = LlamaConfig();
  config["tie_word_embeddings"] = true;
  folder_.WriteConfig(config);
  Tensors tensors = LlamaTensors();
  tensors["lm_head.weight"].first = "BF16";
  folder_.WriteTensors(tensors, {{"model.embed_tokens.weight", kF32Value}, {"lm_head.weight", kOtherBf16Value}});
  const absl::StatusOr<ImportedModel> model = Import();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Print(model->forward), HasSubstr("param \"lm_head.weight\""));
  EXPECT_EQ(model->own_head, true);
  ASSERT_EQ(model->notes.size(), 1u);
  EXPECT_THAT(model->notes[0], HasSubstr("model.embed_tokens.weight and lm_head.weight are stored with different"));

  // Random weights go by config.json.
  const absl::StatusOr<ImportedModel> random = Import(ImportOptions::Weights::kRandom);
  ASSERT_TRUE(random.ok()) << random.status();
  EXPECT_THAT(Print(random->forward), Not(HasSubstr("lm_head.weight")));
  EXPECT_THAT(random->notes, testing::IsEmpty());

  // Another shape is other values, and no head of this model.
  tensors["lm_head.weight"].second = {12, 8};
  folder_.WriteTensors(tensors);
  EXPECT_THAT(Error(), HasSubstr("tensor \"lm_head.weight\" has shape [12,8], but by config.json it is [11,8]"));
}

TEST_F(ImportTest, HeadAndEmbeddingInTwoFilesAreCompared) {
  json config = LlamaConfig();
  config["tie_word_embeddings"] = true;
  folder_.WriteConfig(config);
  Tensors first = LlamaTensors(), second;
  second.insert(first.extract("lm_head.weight"));
  json map = json::object();
  for (const auto& item : first) map[item.first] = "a.safetensors";
  map["lm_head.weight"] = "b.safetensors";
  folder_.Write("model.safetensors.index.json", json({{"weight_map", map}}).dump());
  folder_.Write("a.safetensors", ModelFolder::Safetensors(first, {{"model.embed_tokens.weight", kF32Value}}));
  folder_.Write("b.safetensors", ModelFolder::Safetensors(second, {{"lm_head.weight", kF32Value}}));
  EXPECT_EQ(Import()->own_head, false);
  folder_.Write("b.safetensors", ModelFolder::Safetensors(second));
  EXPECT_EQ(Import()->own_head, true);
}

TEST_F(ImportTest, TiedMatrixMayBeStoredAsTheHead) {
  json config = LlamaConfig();
  config["tie_word_embeddings"] = true;
  folder_.WriteConfig(config);
  Tensors tensors = LlamaTensors();
  tensors.erase("model.embed_tokens.weight");
  folder_.WriteTensors(tensors);
  const absl::StatusOr<ImportedModel> model = Import();
  ASSERT_TRUE(model.ok()) << model.status();
  const std::string text = Print(model->forward);
  EXPECT_THAT(text, HasSubstr("param \"lm_head.weight\""));
  EXPECT_THAT(text, Not(HasSubstr("model.embed_tokens.weight")));
}

TEST_F(ImportTest, NamesWithoutTheBasePrefixAreKept) {
  folder_.WriteConfig({{"model_type", "bloom"}, {"vocab_size", 11}, {"hidden_size", 4}, {"n_layer", 1}, {"n_head", 2}});
  const absl::StatusOr<ImportedModel> random = Import(ImportOptions::Weights::kRandom);
  ASSERT_TRUE(random.ok()) << random.status();
  Tensors tensors;
  for (const Node& node : random->forward.nodes) {
    if (node.op != Op::kParam) continue;
    const Dims dims = GetAttr<std::vector<int64_t>>(node.attrs, "stored", random->forward.type(node.results[0]).dims);
    tensors[node.symbol.substr(std::string("transformer.").size())] = {"F32", dims};
  }
  folder_.WriteTensors(tensors);
  const absl::StatusOr<ImportedModel> model = Import();
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_THAT(Print(model->forward), HasSubstr("param \"h.0.mlp.dense_h_to_4h.weight\""));
  EXPECT_THAT(model->units, testing::ElementsAre("h.0"));
}

TEST_F(ImportTest, BatchesBeyondAnyMemoryAreRefused) {
  folder_.WriteConfig(LlamaConfig());
  ImportOptions options;
  options.weights = ImportOptions::Weights::kRandom;
  options.batch = int64_t{1} << 52;
  options.seq_len = 32;
  EXPECT_EQ(ImportModel(folder_.path(), options, ops_).status().message(),
            "batch = 4503599627370496 of seq_len = 32 tokens is too large for a model with rows of 16");
}

TEST_F(ImportTest, UnknownLayerClassListsTheModels) {
  folder_.WriteConfig(LlamaConfig());
  ImportOptions options;
  options.weights = ImportOptions::Weights::kRandom;
  options.wrap_layer_cls = {"LlamaDecoderLayer", "BloomBlock"};
  EXPECT_EQ(ImportModel(folder_.path(), options, ops_).status().message(),
            "dist.fsdp.wrap_layer_cls: \"BloomBlock\" is no class of family llama that can be a unit; wanted "
            "LlamaDecoderLayer");
  options.wrap_layer_cls = {};
  options.gc_cls = {"BloomBlock"};
  EXPECT_THAT(std::string(ImportModel(folder_.path(), options, ops_).status().message()),
              HasSubstr("memory.gc_cls: \"BloomBlock\" is no class of family llama"));
}

TEST_F(ImportTest, NamesWhatIsTakenForAModel) {
  std::filesystem::remove(folder_.path() + "/config.json");
  std::filesystem::create_directories(folder_.path() + "/snapshots/abc");
  EXPECT_EQ(Error(), "DIR is a folder of the Hugging Face cache; the model is in DIR/snapshots/abc");
  folder_.Write("adapter_config.json", "{}");
  EXPECT_THAT(Error(),
              HasSubstr("DIR is an adapter (LoRA), not a model; give its base model, and to go on with the adapter "
                        "train.lora.init_from: DIR"));
}

TEST_F(ImportTest, ConfigThatIsNoConfig) {
  EXPECT_EQ(Error(), "DIR/config.json: there is no such file");
  folder_.Write("config.json", "{\"a\": 1,\n \"b\": }");
  EXPECT_THAT(Error(), HasSubstr("DIR/config.json:2:7: not JSON"));
  EXPECT_EQ(Error(), "DIR/config.json:2:7: not JSON at \"}\", after the key \"b\"");
  folder_.Write("config.json", "{\"a\": 1, \"a\": 2}");
  EXPECT_THAT(Error(), HasSubstr("the key \"a\" is given twice"));
  folder_.Write("config.json", std::string(200, '['));
  EXPECT_THAT(Error(), HasSubstr("nested deeper than 64 levels"));
  folder_.Write("config.json", "[1]");
  EXPECT_THAT(Error(), HasSubstr("wanted an object"));
  folder_.Write("config.json", "{\"model_type\": \"mamba\"}");
  EXPECT_THAT(Error(),
              HasSubstr("model_type = \"mamba\": no such family of models is known; known are llama, mistral, "
                        "qwen2, qwen3, olmo, olmo2, hf_olmo, olmo3, smollm3, phi3, starcoder2, gemma2, gemma3_text, "
                        "mixtral, qwen2_moe, qwen3_moe, olmoe, granitemoe, gpt_oss, deepseek_v2, deepseek_v3, "
                        "granite, glm, glm4, chatglm, gpt2, gpt_neox, falcon, bloom, baichuan"));
}

// What would divide by zero, or train nothing, is said of the file, not of its results.
TEST_F(ImportTest, NumbersThatCannotTrainAreRefusedByName) {
  const auto error = [&](const char* key, const std::string& value) {
    std::string text = LlamaConfig().dump();
    text.back() = ',';
    folder_.Write("config.json", absl::StrCat(text, "\n\"", key, "\": ", value, "}"));
    return Error(ImportOptions::Weights::kRandom);
  };
  const std::string eps = "DIR/config.json: rms_norm_eps = ", wanted = ": wanted a number from 1e-30 to 1";
  EXPECT_EQ(error("rms_norm_eps", "0"), absl::StrCat(eps, "0", wanted));
  EXPECT_EQ(error("rms_norm_eps", "0.0"), absl::StrCat(eps, "0.0", wanted));
  EXPECT_EQ(error("rms_norm_eps", "-1e-6"), absl::StrCat(eps, "-1e-06", wanted));
  EXPECT_EQ(error("rms_norm_eps", "\"1e-6\""), absl::StrCat(eps, "\"1e-6\"", wanted));
  EXPECT_EQ(error("rms_norm_eps", "1e-50"), absl::StrCat(eps, "1e-50", wanted));
  EXPECT_EQ(error("rms_norm_eps", "NaN"), "DIR/config.json:2:17: not JSON at \"NaN\", after the key \"rms_norm_eps\"");
  EXPECT_EQ(error("rope_theta", "Infinity"),
            "DIR/config.json:2:15: not JSON at \"Infinity\", after the key \"rope_theta\"");
  EXPECT_THAT(error("rope_theta", "1e999"), HasSubstr("too large a number: \"1e999\", after the key \"rope_theta\""));
  EXPECT_EQ(error("rope_theta", "0"), "DIR/config.json: rope_theta = 0: wanted a number from 1e-06 to 1e+30");
  EXPECT_EQ(error("attention_dropout", "-0.1"),
            "DIR/config.json: attention_dropout = -0.1: wanted a number from 0 to 0.999");
  EXPECT_EQ(error("initializer_range", "0"),
            "DIR/config.json: initializer_range = 0: random weights would all be 0, from which nothing is learned; "
            "wanted more than 0, as 0.02");
  folder_.WriteTensors(LlamaTensors());
  EXPECT_TRUE(Import().ok()) << "no weight is drawn";
}

TEST_F(ImportTest, FactsHaveTheFilesNames) {
  json config = LlamaConfig();
  const auto keys = [&] {
    folder_.WriteConfig(config);
    return Import(ImportOptions::Weights::kRandom).value().fact_keys;
  };
  EXPECT_TRUE(keys().empty());
  config["rms_norm_eps"] = 1e-6;
  config["rope_theta"] = 500.0;
  EXPECT_EQ(keys(), (std::map<std::string, std::string>{{"norm_eps", "rms_norm_eps"}}));
  config["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(keys(), (std::map<std::string, std::string>{{"norm_eps", "rms_norm_eps"},
                                                        {"rope_factor", "rope_scaling.factor"},
                                                        {"rope_type", "rope_scaling.type"}}));
}

}  // namespace
}  // namespace tacc::graph
