#include "graph/import/families.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/import/olmo_native.h"
#include "graph/import/read_sizes.h"

namespace tacc::graph {
namespace {

// The parts that transformers' own families share. Layers of all of them are initialised alike: matrices and embeddings
// normal, biases zero, norms one.
void ReadTransformersInit(ConfigReader& config, DecoderSpec& spec) {
  const std::string init = NormalInit(config.Float("initializer_range", 0.0, 1.0, 0.02));
  spec.init = {init, init, init, init, [init](int64_t) { return init; }, [init](int64_t) { return init; }};
}

void ReadRotaryPosition(ConfigReader& config, int64_t seq_len, int64_t default_max_positions, DecoderSpec& spec) {
  spec.max_seq_len = config.Int("max_position_embeddings", 1, kMaxLength, default_max_positions);
  if (spec.head_dim % 2 != 0) {
    config.Fail("num_attention_heads", absl::StrCat("rotary embeddings need heads of even size, got ", spec.head_dim));
    return;
  }
  spec.rotary = ReadRotary(config, {spec.head_dim, seq_len, spec.max_seq_len});
  if (IsDynamicRotary(config)) spec.max_seq_len = 0;
}

void ReadGatedMlp(ConfigReader& config, int64_t default_intermediate, DecoderSpec& spec) {
  spec.intermediate_size = config.Int("intermediate_size", 1, kMaxWidth, default_intermediate);
  spec.activation = ReadActivation(config, "hidden_act", "silu");
}

// LLaMA, Qwen 3 and OLMo of transformers: separate projections, gated MLP, rotary embeddings.
struct LlamaLikeDefaults {
  int64_t vocab_size, hidden_size, intermediate_size, num_layers, num_heads, max_positions;
};

void ReadLlamaLike(ConfigReader& config, int64_t seq_len, const LlamaLikeDefaults& defaults, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, defaults.vocab_size);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, defaults.hidden_size);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, defaults.num_layers);
  ReadHeads(config, {"num_attention_heads", "num_key_value_heads", "head_dim"}, defaults.num_heads, spec);
  ReadGatedMlp(config, defaults.intermediate_size, spec);
  ReadRotaryPosition(config, seq_len, defaults.max_positions, spec);
  spec.qkv_bias = spec.attention_out_bias = ReadBias(config, "attention_bias", Bias::kNone);
  RefuseAttentionDropout(config, 0.0);
  spec.head = config.Bool("tie_word_embeddings", false) ? DecoderSpec::kTiedHead : DecoderSpec::kOwnHead;
}

void ReadLlama(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {32000, 4096, 11008, 32, 32, 2048}, spec);
  spec.norm = {NormSpec::kRms, Affine::kWeight, config.Float("rms_norm_eps", 0, 1, 1e-6)};
  spec.mlp_bias = ReadBias(config, "mlp_bias", Bias::kNone);
}

void ReadQwen3(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  if (!config.Has("head_dim")) spec.head_dim = 128;
  ReadLlamaLike(config, seq_len, {151936, 4096, 22016, 32, 32, 32768}, spec);
  spec.norm = {NormSpec::kRms, Affine::kWeight, config.Float("rms_norm_eps", 0, 1, 1e-6)};
  spec.qk_norm = spec.norm;
  spec.qk_norm_over = DecoderSpec::kHeadDim;
  config.RefuseUnless("use_sliding_window", false, "attention over a sliding window is not supported");
  const std::vector<std::string> layer_types = config.Strings("layer_types");
  const auto odd =
      std::find_if(layer_types.begin(), layer_types.end(), [](const auto& t) { return t != "full_attention"; });
  if (odd != layer_types.end()) {
    config.Fail("layer_types",
                absl::StrCat("layers of type \"", *odd, "\" are not supported, only \"full_attention\""));
  } else if (!layer_types.empty() && static_cast<int64_t>(layer_types.size()) != spec.num_layers) {
    config.Fail("layer_types",
                absl::StrCat("has ", layer_types.size(), " entries for num_hidden_layers = ", spec.num_layers));
  }
}

void ReadOlmo(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadLlamaLike(config, seq_len, {50304, 4096, 11008, 32, 32, 2048}, spec);
  spec.norm = {NormSpec::kLayer, Affine::kNone, 1e-5};
  spec.clip_qkv = config.OptionalFloat("clip_qkv", 1e-30, 1e30);
}

void ReadBloom(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 250880);
  spec.hidden_size = ReadRenamed(config, "hidden_size", "n_embed", kMaxWidth, 64);
  spec.num_layers = ReadRenamed(config, "n_layer", "num_hidden_layers", kMaxLayers, 2);
  spec.num_heads = spec.num_kv_heads = ReadRenamed(config, "n_head", "num_attention_heads", kMaxWidth, 8);
  SetHeadDim(config, "n_head", spec);
  spec.alibi_slopes = AlibiSlopes(spec.num_heads);
  const double eps = config.Float("layer_norm_epsilon", 0, 1, 1e-5);
  spec.norm = {NormSpec::kLayer, Affine::kWeightBias, eps};
  spec.embedding_norm = spec.norm;
  if (config.Bool("apply_residual_connection_post_layernorm", false)) spec.residual_from = DecoderSpec::kFromNorm;
  spec.qkv_layout = DecoderSpec::kInterleaved;
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = Bias::kPresent;
  spec.mlp_kind = DecoderSpec::kPlain;
  spec.activation = DecoderSpec::kGeluTanh;
  spec.intermediate_size = 4 * spec.hidden_size;
  config.RefuseUnless("n_inner", spec.intermediate_size, "the inner size of Bloom is always 4 x hidden_size");
  spec.residual_dropout = ReadDropout(config, "hidden_dropout", 0.0);
  RefuseAttentionDropout(config, 0.0);
  spec.head = config.Bool("tie_word_embeddings", true) ? DecoderSpec::kTiedHead : DecoderSpec::kOwnHead;
}

// Baichuan 7B has max_position_embeddings and rotary embeddings; 13B has only model_max_length, and ALiBi. NormHead
// came with Baichuan 2, which no key tells from Baichuan 1: known by its vocabulary, or by a key of our own, norm_head.
void ReadBaichuan(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  constexpr int64_t kBaichuan2Vocabulary = 125696;
  ReadTransformersInit(config, spec);
  spec.vocab_rows = config.Int("vocab_size", 1, kMaxVocabulary, 64000);
  spec.hidden_size = config.Int("hidden_size", 1, kMaxWidth, 4096);
  spec.num_layers = config.Int("num_hidden_layers", 1, kMaxLayers, 32);
  spec.num_heads = spec.num_kv_heads = config.Int("num_attention_heads", 1, kMaxWidth, 32);
  SetHeadDim(config, "num_attention_heads", spec);
  ReadGatedMlp(config, 11008, spec);
  spec.norm = {NormSpec::kRms, Affine::kWeight, config.Float("rms_norm_eps", 0, 1, 1e-6)};
  spec.qkv_layout = DecoderSpec::kStacked;
  if (config.Has("max_position_embeddings")) {
    spec.max_seq_len = config.Int("max_position_embeddings", 1, kMaxLength, 4096);
    if (spec.head_dim % 2 != 0) {
      config.Fail("num_attention_heads",
                  absl::StrCat("rotary embeddings need heads of even size, got ", spec.head_dim));
    } else {
      spec.rotary = PlainRotary(10000.0, spec.head_dim);
    }
    config.Harmless({"model_max_length"});
  } else {
    spec.max_seq_len = config.Int("model_max_length", 1, kMaxLength, 4096);
    spec.alibi_slopes = AlibiSlopes(spec.num_heads);
  }
  config.RefuseUnless("tie_word_embeddings", false, "Baichuan has a head of its own");
  config.RefuseUnless("z_loss_weight", 0, "the z-loss is not supported");
  if (config.Bool("norm_head", spec.vocab_rows == kBaichuan2Vocabulary)) spec.head = DecoderSpec::kNormalizedHead;
}

DecoderNames BloomNames() {
  DecoderNames names;
  names.base = "transformer.";
  names.embedding = "transformer.word_embeddings";
  names.embedding_norm = "transformer.word_embeddings_layernorm";
  names.layer = "transformer.h.{layer}";
  names.final_norm = "transformer.ln_f";
  names.attention = "self_attention";
  names.qkv = "self_attention.query_key_value";
  names.attention_out = "self_attention.dense";
  names.up = "mlp.dense_h_to_4h";
  names.down = "mlp.dense_4h_to_h";
  return names;
}

DecoderNames Qwen3Names() {
  DecoderNames names;
  names.q_norm = "self_attn.q_norm";
  names.k_norm = "self_attn.k_norm";
  return names;
}

DecoderNames BaichuanNames() {
  DecoderNames names;
  names.qkv = "self_attn.W_pack";
  return names;
}

}  // namespace

std::vector<Family> Families() {
  return {
      // pretraining_tp: a way of splitting the same products.
      {"llama",
       {"llama"},
       {"LlamaForCausalLM", "LLaMAForCausalLM"},
       {"LlamaDecoderLayer"},
       DecoderNames(),
       {"pretraining_tp"},
       ReadLlama},
      // sliding_window, max_window_layers: nothing without use_sliding_window.
      {"qwen3",
       {"qwen3"},
       {"Qwen3ForCausalLM"},
       {"Qwen3DecoderLayer"},
       Qwen3Names(),
       {"sliding_window", "max_window_layers"},
       ReadQwen3},
      {"olmo", {"olmo"}, {"OlmoForCausalLM"}, {"OlmoDecoderLayer"}, DecoderNames(), {}, ReadOlmo},
      {"hf_olmo",
       {"hf_olmo", "olmo"},
       {"OLMoForCausalLM"},
       {"OLMoSequentialBlock", "OlmoSequentialBlock", "OLMoBlock"},
       NativeOlmoNames(),
       NativeOlmoHarmlessKeys(),
       ReadNativeOlmo},
      // attention_softmax_in_fp32 and below: choices of kernels in Megatron; pretraining_tp, slow_but_exact: order of
      // the same sums;
      // seq_length: the length it was trained at, which ALiBi does not limit.
      {"bloom",
       {"bloom"},
       {"BloomForCausalLM"},
       {"BloomBlock"},
       BloomNames(),
       {"attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "offset_alibi", "skip_bias_add",
        "skip_bias_add_qkv", "pretraining_tp", "slow_but_exact", "seq_length", "unk_token_id"},
       ReadBloom},
      {"baichuan",
       {"baichuan"},
       {"BaichuanForCausalLM", "BaiChuanForCausalLM"},
       {"DecoderLayer", "BaichuanLayer"},
       BaichuanNames(),
       {},
       ReadBaichuan},
  };
}

namespace {

// The row for a config.json. `olmo` is the name of two formats: the older one speaks of d_model.
std::optional<Family> FindFamily(const nlohmann::json& config, const std::string& model_type) {
  const bool is_native_olmo = model_type == "olmo" && config.contains("d_model");
  for (Family& family : Families()) {
    if (is_native_olmo && family.name != "hf_olmo") continue;
    if (std::count(family.model_types.begin(), family.model_types.end(), model_type) > 0) return std::move(family);
  }
  return std::nullopt;
}

std::string ReadWeightsDtype(ConfigReader& config) {
  const std::map<std::string, std::string> names = {
      {"float32", "F32"}, {"bfloat16", "BF16"}, {"float16", "F16"}, {"float64", "F64"}, {"", ""}};
  const std::string old_name = config.Choice("torch_dtype", names, "");
  const std::string name = config.Choice("dtype", names, "");
  return name.empty() ? old_name : name;
}

}  // namespace

std::set<std::string> HarmlessKeys() {
  return {
      // Which program wrote the file, and where it lay.
      "_name_or_path", "_from_model_config", "auto_map", "transformers_version", "tokenizer_class", "_commit_hash",
      // Tokens with a meaning. Samples are packed, so no padding is ever computed; each row of the embedding is
      // trained.
      "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id",
      // What a forward pass hands out, and how it is computed in PyTorch.
      "use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript", "gradient_checkpointing",
      "_attn_implementation", "attn_implementation", "use_flash_attention", "_flash_attn_2_enabled",
      // Generation.
      "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
      "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
      "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
      "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
      "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
      // Other tasks.
      "task_specific_params", "problem_type", "finetuning_task", "id2label", "label2id", "prefix"};
}

absl::StatusOr<ReadFamily> ReadModelConfig(const nlohmann::json& config, int64_t seq_len) {
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: wanted an object");
  ConfigReader reader(config, "config.json");
  const std::string model_type = reader.String("model_type", "");
  ReadFamily result;
  std::optional<Family> found = FindFamily(config, model_type);
  if (!found.has_value()) {
    std::vector<std::string> known;
    for (const Family& family : Families()) known.push_back(family.name);
    return absl::InvalidArgumentError(
        absl::StrCat("config.json: model_type = ", model_type.empty() ? "absent" : absl::StrCat("\"", model_type, "\""),
                     ": no such family of models is known; known are ", absl::StrJoin(known, ", "),
                     ". A graph text (model.graph) can say any model"));
  }
  result.family = *std::move(found);
  const Family& family = result.family;
  const std::vector<std::string> architectures = reader.Strings("architectures");
  const bool is_language_model =
      architectures.empty() || std::any_of(architectures.begin(), architectures.end(), [&](const auto& a) {
        return std::count(family.architectures.begin(), family.architectures.end(), a) > 0;
      });
  if (!is_language_model) {
    reader.Fail("architectures", absl::StrCat("is not the language model of family ", family.name, "; wanted ",
                                              absl::StrJoin(family.architectures, " or ")));
  }
  for (const char* key : {"quantization_config", "pruned_heads"}) {
    reader.RefuseUnless(key, nlohmann::json::object(), "models changed in this way are not supported");
  }
  for (const char* key :
       {"is_encoder_decoder", "is_decoder", "add_cross_attention", "cross_attention_hidden_size", "use_bfloat16"}) {
    reader.RefuseUnless(key, false, "only plain decoders are supported");
  }
  reader.RefuseUnless("chunk_size_feed_forward", 0, "not supported");
  reader.RefuseUnless("tf_legacy_loss", false, "not supported");
  reader.RefuseUnless("tie_encoder_decoder", false, "only plain decoders are supported");
  reader.Harmless(HarmlessKeys());
  reader.Harmless(family.harmless);
  result.weights_dtype = ReadWeightsDtype(reader);
  DecoderSpec& spec = result.spec;
  spec.family = family.name;
  spec.names = family.names;
  family.read(reader, seq_len, spec);
  if (spec.max_seq_len > 0 && seq_len > spec.max_seq_len) {
    const char* key = family.name == "hf_olmo"                                             ? "max_sequence_length"
                      : reader.Has("max_position_embeddings") || family.name != "baichuan" ? "max_position_embeddings"
                                                                                           : "model_max_length";
    reader.Fail(key, absl::StrCat("the model takes at most ", spec.max_seq_len,
                                  " tokens, but samples have data.seq_len = ", seq_len));
  }
  result.used_keys = reader.used();
  auto status = reader.Finish(absl::StrCat("family ", family.name));
  if (!status.ok()) return status;
  return result;
}

}  // namespace tacc::graph
