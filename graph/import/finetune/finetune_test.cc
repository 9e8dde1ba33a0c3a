#include "graph/import/finetune/finetune.h"

#include <sys/stat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/import/families.h"
#include "graph/import/finetune/adapter_folder.h"
#include "graph/import/finetune/freeze.h"
#include "graph/import/finetune/lora.h"
#include "graph/ir/program.h"
#include "graph/ir/text.h"
#include "graph/verify/verify.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tacc::graph {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// A small model of a family, as ImportModel describes it.
ImportedModel Import(const json& config, const OpTable& ops) {
  const auto read = ReadModelConfig(config, 4);
  EXPECT_TRUE(read.ok()) << read.status();
  ImportedModel model;
  model.forward = *BuildDecoder(read->spec, {.batch = 2, .seq_len = 4}, ops);
  model.head_module = model.head_path = read->spec.names.head;
  model.lora_targets = read->family.lora_targets;
  model.renamed_modules = read->family.renamed_modules;
  model.taken_for_experts = read->family.taken_for_experts;
  return model;
}

json Llama() {
  return {{"model_type", "llama"},  {"vocab_size", 11},         {"hidden_size", 8},         {"intermediate_size", 6},
          {"num_hidden_layers", 1}, {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"attention_bias", true}};
}

json ChatGlm() {
  return {{"model_type", "chatglm"},   {"padded_vocab_size", 11},  {"hidden_size", 8}, {"ffn_hidden_size", 6},
          {"num_layers", 1},           {"num_attention_heads", 4}, {"kv_channels", 4}, {"multi_query_attention", true},
          {"multi_query_group_num", 2}};
}

json Mixtral() {
  json config = Llama();
  config.erase("attention_bias");
  config.update({{"model_type", "mixtral"}, {"num_local_experts", 4}, {"num_experts_per_tok", 2}});
  return config;
}

json Qwen2Moe() {
  json config = Mixtral();
  config.update({{"model_type", "qwen2_moe"}, {"moe_intermediate_size", 3}, {"shared_expert_intermediate_size", 5}});
  return config;
}

json DeepseekV2() {
  return {
      {"model_type", "deepseek_v2"}, {"vocab_size", 11},         {"hidden_size", 8},           {"intermediate_size", 6},
      {"num_hidden_layers", 2},      {"num_attention_heads", 4}, {"num_key_value_heads", 4},   {"n_routed_experts", 4},
      {"num_experts_per_tok", 2},    {"q_lora_rank", 6},         {"moe_intermediate_size", 3}, {"kv_lora_rank", 4},
      {"first_k_dense_replace", 1},  {"qk_nope_head_dim", 4},    {"qk_rope_head_dim", 2},      {"v_head_dim", 3}};
}

json GptNeoX() {
  return {{"model_type", "gpt_neox"}, {"vocab_size", 11},       {"hidden_size", 32},
          {"intermediate_size", 6},   {"num_hidden_layers", 1}, {"num_attention_heads", 4}};
}

json GptOss() {
  json config = Mixtral();
  config["model_type"] = "gpt_oss";
  return config;
}

FinetuneRequest LoraOf(std::vector<std::string> target_modules, double dropout = 0) {
  FinetuneRequest request;
  request.lora.emplace().target_modules = std::move(target_modules);
  request.lora->r = 2;
  request.lora->dropout = dropout;
  return request;
}

std::string ErrorOf(const json& config, const FinetuneRequest& request) {
  const OpTable ops;
  ImportedModel model = Import(config, ops);
  return std::string(Finetune(request, "/model", 5, ops, model).message());
}

// "NAME TYPE [stored]" of the params with that role.
std::set<std::string> Params(const ImportedModel& model, WeightRole role) {
  std::set<std::string> params;
  for (const Node& node : model.forward.nodes) {
    if (node.op != Op::kParam || GetAttr<std::string>(node.attrs, "role", "trained") != Name(role)) continue;
    const Dims dims = model.forward.type(node.results[0]).dims;
    const auto stored = GetAttr<std::vector<int64_t>>(node.attrs, "stored", dims);
    params.insert(absl::StrCat(node.symbol, " ", DimsToString(dims), stored == dims ? "" : DimsToString(stored)));
  }
  return params;
}

// The lines of the graph that are of the module.
std::string LinesOf(const ImportedModel& model, const std::string& module) {
  std::string lines;
  for (const Node& node : model.forward.nodes) {
    if (node.module == module) absl::StrAppend(&lines, Print(model.forward, node, Mesh()), "\n");
  }
  return lines;
}

TEST(Lora, AddsToAModulesResultBehindItsBias) {
  const OpTable ops;
  ImportedModel model = Import(Llama(), ops);
  ASSERT_TRUE(Finetune(LoraOf({"q_proj"}, 0.5), "/model", 5, ops, model).ok());
  EXPECT_TRUE(VerifyGraph(model.forward, ops).ok());
  const std::string bound = Print(Attr(1 / std::sqrt(8.0)));
  const std::string q = "model.layers.0.self_attn.q_proj";
  const std::string lines = LinesOf(model, q);
  EXPECT_THAT(lines, HasSubstr("spec=\"bsk,hdk->bshd\""));
  EXPECT_THAT(lines, HasSubstr("key=0 rate=0.5 seed=5 : f32[2,4,8]"));
  EXPECT_THAT(lines, HasSubstr(absl::StrCat("param \"", q, ".lora_A.weight\" axes=[\"\",embed] init=\"uniform(-", bound,
                                            ",", bound, ")\" role=adapter : f32[2,8]")));
  EXPECT_THAT(lines, HasSubstr("spec=\"bsk,ak->bsa\""));
  EXPECT_THAT(lines, HasSubstr("factor=4.0"));
  EXPECT_THAT(lines, HasSubstr(absl::StrCat("param \"", q,
                                            ".lora_B.weight\" axes=[heads,head_dim,\"\"] init=zeros "
                                            "role=adapter stored=[8,2] : f32[4,2,2]")));
  EXPECT_THAT(lines, HasSubstr("spec=\"bsa,hda->bshd\""));
  // What reads the module's result reads the sum, whose first operand has the bias.
  const Node* sum = nullptr;
  for (const Node& node : model.forward.nodes) {
    if (node.module == q && node.op == "add") sum = &node;
    if (node.op == "rotary" && sum != nullptr) break;
  }
  ASSERT_NE(sum, nullptr);
  const std::vector<int> producers = model.forward.Producers();
  EXPECT_EQ(model.forward.nodes[producers[sum->operands[0]]].op, "add");
  EXPECT_EQ(model.forward.nodes[producers[sum->operands[1]]].op, "einsum");
  int readers = 0;
  for (const Node& node : model.forward.nodes) {
    for (ValueId v : node.operands) readers += v == sum->results[0] ? 1 : 0;
  }
  EXPECT_EQ(readers, 1);
}

TEST(Lora, FreezesAllElse) {
  const OpTable ops;
  ImportedModel model = Import(Llama(), ops);
  ASSERT_TRUE(Finetune(LoraOf({"o_proj"}), "/model", 5, ops, model).ok());
  EXPECT_THAT(Params(model, WeightRole::kTrained), ElementsAre());
  EXPECT_THAT(Params(model, WeightRole::kAdapter),
              ElementsAre("model.layers.0.self_attn.o_proj.lora_A.weight [2,4,2][2,8]",
                          "model.layers.0.self_attn.o_proj.lora_B.weight [8,2]"));
  EXPECT_EQ(Params(model, WeightRole::kFrozen).size(), 16u);
}

// Of a fused module whose rows are three weights: one A, and a B for each, as peft has for the module.
TEST(Lora, SharesAAmongTheRowsOfAFusedModule) {
  const OpTable ops;
  ImportedModel model = Import(ChatGlm(), ops);
  FinetuneRequest request = LoraOf({});
  ASSERT_TRUE(Finetune(request, "/model", 5, ops, model).ok());  // peft's default of the family
  const std::string qkv = "transformer.encoder.layers.0.self_attention.query_key_value";
  EXPECT_THAT(
      Params(model, WeightRole::kAdapter),
      ElementsAre(absl::StrCat(qkv, ".lora_A.weight [2,8]"), absl::StrCat(qkv, ".lora_B.weight[0:16] [4,4,2][16,2]"),
                  absl::StrCat(qkv, ".lora_B.weight[16:24] [2,4,2][8,2]"),
                  absl::StrCat(qkv, ".lora_B.weight[24:32] [2,4,2][8,2]")));
  EXPECT_TRUE(VerifyGraph(model.forward, ops).ok());
}

std::vector<std::string> TargetsOf(const json& config, const FinetuneRequest& request) {
  const OpTable ops;
  ImportedModel model = Import(config, ops);
  const absl::Status status = Finetune(request, "/model", 5, ops, model);
  EXPECT_TRUE(status.ok()) << status;
  return json::parse(model.adapter_config)["target_modules"].get<std::vector<std::string>>();
}

TEST(Lora, AllLinearLeavesOutTheHeadTheRouterAndExperts) {
  EXPECT_THAT(TargetsOf(Llama(), LoraOf({"all-linear"})),
              ElementsAre("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"));
  EXPECT_THAT(TargetsOf(Mixtral(), LoraOf({"all-linear"})), ElementsAre("k_proj", "o_proj", "q_proj", "v_proj"));
  EXPECT_THAT(TargetsOf(GptOss(), LoraOf({"all-linear"})), ElementsAre("k_proj", "o_proj", "q_proj", "v_proj"));
  EXPECT_THAT(TargetsOf(ChatGlm(), LoraOf({"all-linear"})),
              ElementsAre("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value"));
}

// A module of one result, whose weight the graph has without that dim.
TEST(Lora, AdaptsTheWeightOfASharedExpert) {
  EXPECT_THAT(
      TargetsOf(Qwen2Moe(), LoraOf({})),
      ElementsAre("k_proj", "model.layers.0.mlp.shared_expert.down_proj", "model.layers.0.mlp.shared_expert.gate_proj",
                  "model.layers.0.mlp.shared_expert.up_proj", "o_proj", "q_proj", "shared_expert_gate", "v_proj"));
  const OpTable ops;
  ImportedModel model = Import(Qwen2Moe(), ops);
  ASSERT_TRUE(Finetune(LoraOf({"shared_expert_gate"}), "/model", 5, ops, model).ok());
  EXPECT_TRUE(VerifyGraph(model.forward, ops).ok());
  const std::string gate = "model.layers.0.mlp.shared_expert_gate";
  EXPECT_THAT(Params(model, WeightRole::kAdapter),
              ElementsAre(absl::StrCat(gate, ".lora_A.weight [2,8]"), absl::StrCat(gate, ".lora_B.weight [2][1,2]")));
  EXPECT_EQ(json::parse(model.adapter_config)["fan_in_fan_out"], false);
}

// peft would adapt experts instead, also for layers without them and for the shared ones.
TEST(Lora, LeavesOutWhatPeftTakesForExperts) {
  EXPECT_THAT(TargetsOf(DeepseekV2(), LoraOf({})),
              ElementsAre("kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj"));
  EXPECT_EQ(
      ErrorOf(DeepseekV2(), LoraOf({"shared_experts.up_proj"})),
      "train.lora.target_modules: 'shared_experts.up_proj' names model.layers.1.mlp.shared_experts.up_proj, which "
      "peft takes for a part of experts; leave it out");
  EXPECT_THAT(ErrorOf(DeepseekV2(), LoraOf({"layers.0.mlp.gate_proj"})), HasSubstr("peft takes for a part of experts"));
}

// Attention's dropout draws from the same numbers as that of activations.
TEST(Lora, DropsByKeysThatNothingElseHas) {
  const OpTable ops;
  json config = Llama();
  config["attention_dropout"] = 0.1;
  ImportedModel model = Import(config, ops);
  ASSERT_TRUE(Finetune(LoraOf({"all-linear"}, 0.5), "/model", 5, ops, model).ok());
  std::multiset<int64_t> keys;
  for (const Node& node : model.forward.nodes) {
    if (node.op == "dropout") keys.insert(GetAttr<int64_t>(node.attrs, "key"));
    if (node.op == "attention") keys.insert(GetAttr<int64_t>(node.attrs, "dropout_key"));
  }
  EXPECT_THAT(keys, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(Lora, TakesWhatPeftTakesForTheFamily) {
  EXPECT_THAT(TargetsOf(Llama(), LoraOf({})), ElementsAre("q_proj", "v_proj"));
  json olmo = Llama();
  olmo["model_type"] = "olmo";
  EXPECT_EQ(TargetsOf(olmo, LoraOf({})).size(), 7u);  // peft knows no default
}

TEST(Lora, SaysOneLayersModuleByItsWholeName) {
  json config = Llama();
  config["num_hidden_layers"] = 2;
  EXPECT_THAT(TargetsOf(config, LoraOf({"layers.1.self_attn.q_proj", "v_proj"})),
              ElementsAre("model.layers.1.self_attn.q_proj", "v_proj"));
}

TEST(Lora, RefusesWhatIsNoLinearModuleByName) {
  EXPECT_EQ(ErrorOf(Llama(), LoraOf({"q_porj"})),
            "train.lora.target_modules: the model has no module 'q_porj'; the nearest is 'q_proj'");
  EXPECT_EQ(ErrorOf(Llama(), LoraOf({"embed_tokens"})),
            "train.lora.target_modules: 'embed_tokens' names model.embed_tokens, which is an embedding; adapters go to "
            "linear modules, as down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj");
  EXPECT_THAT(ErrorOf(Llama(), LoraOf({"input_layernorm"})), HasSubstr("which is no linear module"));
  EXPECT_THAT(ErrorOf(Mixtral(), LoraOf({"w1"})), HasSubstr("which is experts, whose matrices are one stack"));
  EXPECT_THAT(ErrorOf(Mixtral(), LoraOf({"gate"})), HasSubstr("which is the router of experts"));
  EXPECT_THAT(ErrorOf(GptOss(), LoraOf({"router"})), HasSubstr("which is the router of experts"));
  json tied = Llama();
  tied["tie_word_embeddings"] = true;
  EXPECT_THAT(ErrorOf(tied, LoraOf({"lm_head"})), HasSubstr("which is an embedding that is the head too (tied)"));
  EXPECT_EQ(ErrorOf(Llama(), LoraOf({"lm_head"})), "");
}

// peft has transformers' names, by which it would not find what has another one in the model's files.
TEST(Lora, RefusesModulesThatTransformersCallsOtherwise) {
  EXPECT_EQ(
      ErrorOf(GptNeoX(), LoraOf({"lm_head"})),
      "train.lora.target_modules: 'lm_head' names lm_head, which is called embed_out in the model's files; adapters "
      "of such a module are not supported: leave it out");
  EXPECT_THAT(ErrorOf(GptNeoX(), LoraOf({"embed_out"})), HasSubstr("the model has no module 'embed_out'"));
  EXPECT_THAT(TargetsOf(GptNeoX(), LoraOf({"all-linear"})),
              ElementsAre("dense", "dense_4h_to_h", "dense_h_to_4h", "query_key_value"));
  FinetuneRequest request = LoraOf({"q_proj"});
  request.lora->modules_to_save = {"gate"};
  EXPECT_EQ(ErrorOf(Mixtral(), request),
            "train.lora.modules_to_save: model.layers.0.mlp.gate is called model.layers.0.block_sparse_moe.gate in the "
            "model's files, and peft would not find it; leave it out");
  json granite = Mixtral();
  granite["model_type"] = "granitemoe";
  request.lora->modules_to_save = {"router"};
  EXPECT_THAT(ErrorOf(granite, request), HasSubstr("model.layers.0.block_sparse_moe.router is called "
                                                   "model.layers.0.block_sparse_moe.router.layer in the"));
}

TEST(Lora, TrainsModulesToSaveWhole) {
  const OpTable ops;
  ImportedModel model = Import(Llama(), ops);
  FinetuneRequest request = LoraOf({"q_proj"});
  request.lora->modules_to_save = {"lm_head", "norm"};
  ASSERT_TRUE(Finetune(request, "/model", 5, ops, model).ok());
  EXPECT_THAT(Params(model, WeightRole::kTrained), ElementsAre("lm_head.weight [11,8]", "model.norm.weight [8]"));
  EXPECT_EQ(json::parse(model.adapter_config)["modules_to_save"], json({"lm_head", "model.norm"}));
  request.lora->modules_to_save = {"embed_token"};
  EXPECT_EQ(ErrorOf(Llama(), request),
            "train.lora.modules_to_save: the model has no module 'embed_token'; the nearest is 'embed_tokens'");
  json tied = Llama();
  tied["tie_word_embeddings"] = true;
  request.lora->modules_to_save = {"embed_tokens"};
  EXPECT_THAT(ErrorOf(tied, request), HasSubstr("model.embed_tokens is an embedding that is the head too (tied)"));
}

TEST(Freeze, TakesPatternsOfNames) {
  const OpTable ops;
  ImportedModel model = Import(Mixtral(), ops);
  FinetuneRequest request;
  request.freeze = {"model.embed_tokens.*", "*.experts.*", "model.layers.0.self_attn.[qk]_proj.weight"};
  ASSERT_TRUE(Finetune(request, "/model", 5, ops, model).ok());
  EXPECT_THAT(
      Params(model, WeightRole::kFrozen),
      ElementsAre("model.embed_tokens.weight [11,8]", "model.layers.0.block_sparse_moe.experts.*.w1.weight [4,6,8]",
                  "model.layers.0.block_sparse_moe.experts.*.w2.weight [4,8,6]",
                  "model.layers.0.block_sparse_moe.experts.*.w3.weight [4,6,8]",
                  "model.layers.0.self_attn.k_proj.weight [2,2,8][4,8]",
                  "model.layers.0.self_attn.q_proj.weight [4,2,8][8,8]"));
  EXPECT_EQ(model.adapter_config, "");
}

TEST(Freeze, SaysWhatDoesNotFit) {
  FinetuneRequest request;
  request.freeze = {"lm_haed.weight"};
  EXPECT_EQ(
      ErrorOf(Llama(), request),
      "train.freeze: no parameter is named \"lm_haed.weight\"; the nearest is \"lm_head.weight\" (* stands for any "
      "letters)");
  request.freeze = {"*.experts.2.*"};
  EXPECT_EQ(ErrorOf(Mixtral(), request),
            "train.freeze: \"*.experts.2.*\" matches 1 of the 4 tensors "
            "model.layers.0.block_sparse_moe.experts.*.w1.weight, which are trained as one: name all of them, or none");
  request.freeze = {"*"};
  EXPECT_EQ(ErrorOf(Llama(), request), "train.freeze leaves no parameter to train; freeze fewer");
}

class AdapterFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = absl::StrCat(testing::TempDir(), "/adapter");
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void WriteConfig(const json& changes) {
    json config = {{"peft_type", "LORA"},      {"task_type", "CAUSAL_LM"}, {"r", 2},
                   {"lora_alpha", 6},          {"lora_dropout", 0.1},      {"target_modules", {"q_proj"}},
                   {"use_rslora", true},       {"bias", "none"},           {"rank_pattern", json::object()},
                   {"peft_version", "0.21.2"}, {"use_dora", false},        {"base_model_name_or_path", "org/model"}};
    config.update(changes);
    std::ofstream(dir_ + "/adapter_config.json") << config.dump();
  }

  // Of zeros; `dtype` has four bytes.
  void WriteTensors(const std::map<std::string, std::vector<int64_t>>& tensors, const std::string& dtype = "F32") {
    json header = json::object();
    int64_t end = 0;
    for (const auto& [name, dims] : tensors) {
      int64_t bytes = 4;
      for (int64_t d : dims) bytes *= d;
      header[name] = {{"dtype", dtype}, {"shape", dims}, {"data_offsets", {end, end + bytes}}};
      end += bytes;
    }
    const std::string text = header.dump();
    const uint64_t size = text.size();
    std::ofstream out(dir_ + "/adapter_model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), 8);
    out << text << std::string(end, '\0');
  }

  absl::Status Start(const FinetuneRequest& changes = {.lora = LoraRequest()}, const std::string& model = "/of/model") {
    FinetuneRequest request = changes;
    request.lora->init_from = dir_;
    model_ = Import(Llama(), ops_);
    return Finetune(request, model, 5, ops_, model_);
  }

  const OpTable ops_;
  std::string dir_;
  ImportedModel model_;
  const std::string q_ = "base_model.model.model.layers.0.self_attn.q_proj";
};

TEST_F(AdapterFolderTest, SaysRankScaleAndModules) {
  WriteConfig(json::object());
  WriteTensors({{q_ + ".lora_A.weight", {2, 8}}, {q_ + ".lora_B.weight", {8, 2}}});
  const absl::Status status = Start();
  ASSERT_TRUE(status.ok()) << status;
  const json config = json::parse(model_.adapter_config);
  EXPECT_EQ(config["r"], 2);
  EXPECT_EQ(config["lora_alpha"], 6);
  EXPECT_EQ(config["use_rslora"], true);
  EXPECT_EQ(config["lora_dropout"], 0.1);
  EXPECT_EQ(config["target_modules"], json({"q_proj"}));
  EXPECT_THAT(LinesOf(model_, "model.layers.0.self_attn.q_proj"),
              HasSubstr(absl::StrCat("factor=", Print(Attr(6 / std::sqrt(2.0))))));
}

TEST_F(AdapterFolderTest, OfAnotherBaseIsRefused) {
  WriteConfig(json::object());
  WriteTensors({{q_ + ".lora_A.weight", {2, 16}}, {q_ + ".lora_B.weight", {8, 2}}});
  EXPECT_EQ(Start().message(), absl::StrCat(dir_, "/adapter_model.safetensors does not fit this model: tensor \"", q_,
                                            ".lora_A.weight\" is [2,16], the model's would be [2,8]"));
  EXPECT_EQ(Start({.lora = LoraRequest()}, "/of/other").message(),
            absl::StrCat("train.lora.init_from: the adapter in ", dir_,
                         " is of the base model org/model (base_model_name_or_path in its adapter_config.json), but "
                         "model.path is /of/other; give that model, or, if it is the same under another name, correct "
                         "that line"));
}

TEST_F(AdapterFolderTest, MayNotDiffer) {
  WriteConfig(json::object());
  WriteTensors({{q_ + ".lora_A.weight", {2, 8}}, {q_ + ".lora_B.weight", {8, 2}}});
  EXPECT_EQ(Start({.lora = LoraRequest{.r = 4}}).message(),
            absl::StrCat("train.lora.r = 4, but the adapter in ", dir_, " has 2; leave it out"));
  EXPECT_EQ(Start({.lora = LoraRequest{.target_modules = {"v_proj"}}}).message(),
            absl::StrCat("train.lora.target_modules = v_proj, but the adapter in ", dir_, " has q_proj; leave it out"));
  EXPECT_TRUE(Start({.lora = LoraRequest{.r = 2, .dropout = 0.3, .target_modules = {"q_proj"}}}).ok());
}

TEST_F(AdapterFolderTest, FeaturesThatAreNotSupportedAreNamed) {
  const std::string path = dir_ + "/adapter_config.json";
  const std::string remedy =
      " is not supported; to begin with what the adapter has learned, give the base into which peft's merge_and_unload "
      "has put it as model.path";
  for (const auto& [changes, wanted] : std::vector<std::pair<json, std::string>>{
           {{{"use_dora", true}}, "use_dora = true" + remedy},
           {{{"rank_pattern", {{"q_proj", 4}}}}, "rank_pattern = {\"q_proj\":4}" + remedy},
           {{{"bias", "all"}}, "bias = \"all\"" + remedy},
           {{{std::string(200, 'k'), std::string(200, 'v')}},
            std::string(80, 'k') + "... = \"" + std::string(79, 'v') + "..." + remedy},
           {{{"peft_type", "IA3"}}, "peft_type is \"IA3\"; wanted an adapter of type LORA"}}) {
    WriteConfig(changes);
    EXPECT_EQ(ReadAdapterFolder(dir_).status().message(), absl::StrCat(path, ": ", wanted));
  }
}

TEST_F(AdapterFolderTest, ValuesThatNoAdapterHasAreNamed) {
  const std::string rank = "; wanted a whole number from 1 to 65536";
  const std::string alpha = "; wanted a number of more than 0 and at most 1e+06";
  const std::string dropout = "; wanted a number of at least 0 and less than 1";
  const std::string names = "; wanted a list of names of at most 4096 bytes";
  for (const auto& [changes, wanted] : std::vector<std::pair<json, std::string>>{
           {{{"r", 0}}, "r = 0" + rank},
           {{{"r", 4.5}}, "r = 4.5" + rank},
           {{{"r", 1e300}}, "r = 1e+300" + rank},
           {{{"r", uint64_t{1} << 63}}, "r = 9223372036854775808" + rank},
           {{{"r", "4"}}, "r = \"4\"" + rank},
           {{{"lora_alpha", 0}}, "lora_alpha = 0" + alpha},
           {{{"lora_alpha", 1e308}}, "lora_alpha = 1e+308" + alpha},
           {{{"lora_dropout", 1}}, "lora_dropout = 1" + dropout},
           {{{"use_rslora", 1}}, "use_rslora = 1; wanted true or false"},
           {{{"target_modules", ".*q_proj"}}, "target_modules = \".*q_proj\"" + names},
           {{{"target_modules", {std::string(5000, 'q')}}},
            "target_modules = [\"" + std::string(78, 'q') + "..." + names}}) {
    WriteConfig(changes);
    EXPECT_EQ(ReadAdapterFolder(dir_).status().message(), absl::StrCat(dir_, "/adapter_config.json: ", wanted));
  }
}

TEST_F(AdapterFolderTest, AnAdapterThatBeganByChangingTheBaseIsRefused) {
  for (const json& init : std::vector<json>{true, false, nullptr, "gaussian", "orthogonal", "eva", "mica"}) {
    WriteConfig({{"init_lora_weights", init}});
    EXPECT_TRUE(ReadAdapterFolder(dir_).ok()) << init;
  }
  for (const char* init : {"pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga", "other"}) {
    WriteConfig({{"init_lora_weights", init}});
    EXPECT_EQ(ReadAdapterFolder(dir_).status().message(),
              absl::StrCat(dir_, "/adapter_config.json: init_lora_weights = \"", init,
                           "\" changes the base's weights; save the adapter as one of the unchanged base, with peft's "
                           "save_pretrained(path_initial_model_for_weight_conversion=...), or give the changed base as "
                           "model.path and write true here"));
  }
}

TEST_F(AdapterFolderTest, FilesThatAreNoAdaptersAreNamed) {
  EXPECT_EQ(Start().message(), absl::StrCat("train.lora.init_from: ", dir_,
                                            " has no adapter_config.json; give the folder of an adapter as peft's "
                                            "save_pretrained writes it"));
  WriteConfig(json::object());
  WriteTensors({{q_ + ".lora_A.weight", {2, 8}}, {q_ + ".lora_B.weight", {8, 2}}}, "I32");
  EXPECT_EQ(Start().message(), absl::StrCat(dir_, "/adapter_model.safetensors does not fit this model: tensor \"", q_,
                                            ".lora_A.weight\" is I32; wanted F32, BF16, F16 or F64\n", dir_,
                                            "/adapter_model.safetensors does not fit this model: tensor \"", q_,
                                            ".lora_B.weight\" is I32; wanted F32, BF16, F16 or F64"));
  const std::string file = dir_ + "/adapter_model.safetensors";
  std::filesystem::remove(file);
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);  // which nobody writes
  EXPECT_EQ(Start().message(), file + ": not a file");
}

}  // namespace
}  // namespace tacc::graph
