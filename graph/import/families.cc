#include "graph/import/families.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/import/baichuan.h"
#include "graph/import/bloom.h"
#include "graph/import/chatglm.h"
#include "graph/import/gemma.h"
#include "graph/import/gpt.h"
#include "graph/import/llama_like.h"
#include "graph/import/mixtures.h"
#include "graph/import/olmo_native.h"

namespace tacc::graph {
namespace {

std::vector<Family> FamiliesLikeLlama() {
  const DecoderNames names;
  return {
      // pretraining_tp: a way of splitting the same products.
      {.name = "llama",
       .model_types = {"llama"},
       .architectures = {"LlamaForCausalLM", "LLaMAForCausalLM"},
       .layer_classes = {"LlamaDecoderLayer"},
       .names = names,
       .harmless = {"pretraining_tp"},
       .lora_targets = {"q_proj", "v_proj"},
       .read = ReadLlama},
      {.name = "mistral",
       .model_types = {"mistral"},
       .architectures = {"MistralForCausalLM"},
       .layer_classes = {"MistralDecoderLayer"},
       .names = names,
       .lora_targets = {"q_proj", "v_proj"},
       .read = ReadMistral},
      {.name = "qwen2",
       .model_types = {"qwen2"},
       .architectures = {"Qwen2ForCausalLM"},
       .layer_classes = {"Qwen2DecoderLayer"},
       .names = names,
       .lora_targets = {"q_proj", "v_proj"},
       .read = ReadQwen2},
      {.name = "qwen3",
       .model_types = {"qwen3"},
       .architectures = {"Qwen3ForCausalLM"},
       .layer_classes = {"Qwen3DecoderLayer"},
       .names = Qwen3Names(),
       .lora_targets = {"q_proj", "v_proj"},
       .read = ReadQwen3},
      {.name = "olmo",
       .model_types = {"olmo"},
       .architectures = {"OlmoForCausalLM"},
       .layer_classes = {"OlmoDecoderLayer"},
       .names = names,
       .read = ReadOlmo},
      {.name = "olmo2",
       .model_types = {"olmo2"},
       .architectures = {"Olmo2ForCausalLM"},
       .layer_classes = {"Olmo2DecoderLayer"},
       .names = Olmo2Names(),
       .read = ReadOlmo2},
      {.name = "hf_olmo",
       .model_types = {"hf_olmo", "olmo"},
       .architectures = {"OLMoForCausalLM"},
       .layer_classes = {"OLMoSequentialBlock", "OlmoSequentialBlock", "OLMoBlock"},
       .names = NativeOlmoNames(),
       .harmless = NativeOlmoHarmlessKeys(),
       .read = ReadNativeOlmo},
  };
}

std::vector<Family> VariantsOfLlama() {
  const DecoderNames names;
  return {
      {.name = "olmo3",
       .model_types = {"olmo3"},
       .architectures = {"Olmo3ForCausalLM"},
       .layer_classes = {"Olmo3DecoderLayer"},
       .names = Olmo2Names(),
       .read = ReadOlmo3},
      // max_window_layers: read by no code of this family.
      {.name = "smollm3",
       .model_types = {"smollm3"},
       .architectures = {"SmolLM3ForCausalLM"},
       .layer_classes = {"SmolLM3DecoderLayer"},
       .names = names,
       .harmless = {"pretraining_tp", "max_window_layers"},
       .read = ReadSmolLm3},
      // embd_pdrop: transformers makes a module of it that no forward calls.
      {.name = "phi3",
       .model_types = {"phi3"},
       .architectures = {"Phi3ForCausalLM"},
       .layer_classes = {"Phi3DecoderLayer"},
       .names = Phi3Names(),
       .harmless = {"embd_pdrop"},
       .read = ReadPhi3},
      // Names of Megatron's options, whose values this family always has; layer_norm_epsilon beside norm_epsilon, which
      // is read.
      {.name = "starcoder2",
       .model_types = {"starcoder2"},
       .architectures = {"Starcoder2ForCausalLM"},
       .layer_classes = {"Starcoder2DecoderLayer"},
       .names = Starcoder2Names(),
       .harmless = {"attention_softmax_in_fp32", "scale_attention_softmax_in_fp32", "scale_attn_weights",
                    "layer_norm_epsilon"},
       .read = ReadStarcoder2},
      {.name = "gemma2",
       .model_types = {"gemma2"},
       .architectures = {"Gemma2ForCausalLM"},
       .layer_classes = {"Gemma2DecoderLayer"},
       .names = Gemma2Names(),
       .harmless = GemmaHarmlessKeys(),
       .lora_targets = {"q_proj", "v_proj"},
       .read = ReadGemma2},
      {.name = "gemma3_text",
       .model_types = {"gemma3_text"},
       .architectures = {"Gemma3ForCausalLM"},
       .layer_classes = {"Gemma3DecoderLayer"},
       .names = Gemma3Names(),
       .harmless = GemmaHarmlessKeys(),
       .lora_targets = {"q_proj", "v_proj"},
       .read = ReadGemma3},
  };
}

std::set<std::string> PartsOfExperts() { return {"gate_proj", "up_proj", "down_proj"}; }

std::vector<Family> OtherFamilies() {
  const DecoderNames names;
  return {
      {.name = "mixtral",
       .model_types = {"mixtral"},
       .architectures = {"MixtralForCausalLM"},
       .layer_classes = {"MixtralDecoderLayer"},
       .names = MixtralNames(),
       .lora_targets = {"q_proj", "v_proj"},
       .renamed_modules = {{"block_sparse_moe.gate", "mlp.gate"}},
       .read = ReadMixtral},
      {.name = "qwen2_moe",
       .model_types = {"qwen2_moe"},
       .architectures = {"Qwen2MoeForCausalLM"},
       .layer_classes = {"Qwen2MoeDecoderLayer"},
       .names = names,
       .read = ReadQwen2Moe},
      {.name = "qwen3_moe",
       .model_types = {"qwen3_moe"},
       .architectures = {"Qwen3MoeForCausalLM"},
       .layer_classes = {"Qwen3MoeDecoderLayer"},
       .names = Qwen3Names(),
       .taken_for_experts = PartsOfExperts(),
       .read = ReadQwen3Moe},
      {.name = "olmoe",
       .model_types = {"olmoe"},
       .architectures = {"OlmoeForCausalLM"},
       .layer_classes = {"OlmoeDecoderLayer"},
       .names = Qwen3Names(),
       .taken_for_experts = PartsOfExperts(),
       .read = ReadOlmoe},
      {.name = "granitemoe",
       .model_types = {"granitemoe"},
       .architectures = {"GraniteMoeForCausalLM"},
       .layer_classes = {"GraniteMoeDecoderLayer"},
       .names = GraniteMoeNames(),
       .renamed_modules = {{"block_sparse_moe.router.layer", "block_sparse_moe.router"}},
       .read = ReadGraniteMoe},
      // initial_context_length: the length before it was stretched, which rope_scaling says too.
      {.name = "gpt_oss",
       .model_types = {"gpt_oss"},
       .architectures = {"GptOssForCausalLM"},
       .layer_classes = {"GptOssDecoderLayer"},
       .names = GptOssNames(),
       .harmless = {"initial_context_length"},
       .read = ReadGptOss},
      {.name = "deepseek_v2",
       .model_types = {"deepseek_v2"},
       .architectures = {"DeepseekV2ForCausalLM"},
       .layer_classes = {"DeepseekV2DecoderLayer"},
       .names = DeepseekNames(),
       .harmless = DeepseekHarmlessKeys(),
       .taken_for_experts = PartsOfExperts(),
       .read = ReadDeepseekV2},
      {.name = "deepseek_v3",
       .model_types = {"deepseek_v3"},
       .architectures = {"DeepseekV3ForCausalLM"},
       .layer_classes = {"DeepseekV3DecoderLayer"},
       .names = DeepseekNames(),
       .harmless = DeepseekHarmlessKeys(),
       .taken_for_experts = PartsOfExperts(),
       .layers_behind = 4,
       .read = ReadDeepseekV3},
      {.name = "granite",
       .model_types = {"granite"},
       .architectures = {"GraniteForCausalLM"},
       .layer_classes = {"GraniteDecoderLayer"},
       .names = names,
       .read = ReadGranite},
      {.name = "glm",
       .model_types = {"glm"},
       .architectures = {"GlmForCausalLM"},
       .layer_classes = {"GlmDecoderLayer"},
       .names = GlmNames(),
       .read = ReadGlm},
      {.name = "glm4",
       .model_types = {"glm4"},
       .architectures = {"Glm4ForCausalLM"},
       .layer_classes = {"Glm4DecoderLayer"},
       .names = Glm4Names(),
       .read = ReadGlm},
      {.name = "chatglm",
       .model_types = {"chatglm"},
       .architectures = {"ChatGLMModel", "ChatGLMForConditionalGeneration"},
       .layer_classes = {"GLMBlock"},
       .names = ChatGlmNames(),
       .harmless = ChatGlmHarmlessKeys(),
       .lora_targets = {"query_key_value"},
       .read = ReadChatGlm},
      {.name = "gpt2",
       .model_types = {"gpt2"},
       .architectures = {"GPT2LMHeadModel"},
       .layer_classes = {"GPT2Block"},
       .names = Gpt2Names(),
       .harmless = Gpt2HarmlessKeys(),
       .old_buffers = {".attn.bias", ".attn.masked_bias"},
       .lora_targets = {"c_attn"},
       .read = ReadGpt2},
      // *_prob: of GPT-NeoX's own configs, read by no code of transformers.
      {.name = "gpt_neox",
       .model_types = {"gpt_neox"},
       .architectures = {"GPTNeoXForCausalLM"},
       .layer_classes = {"GPTNeoXLayer"},
       .names = GptNeoXNames(),
       .harmless = {"attention_probs_dropout_prob", "hidden_dropout_prob"},
       .old_buffers = {".attention.bias", ".attention.masked_bias"},
       .lora_targets = {"query_key_value"},
       .renamed_modules = {{"embed_out", "lm_head"}},
       .read = ReadGptNeoX},
      {.name = "falcon",
       .model_types = {"falcon"},
       .architectures = {"FalconForCausalLM"},
       .layer_classes = {"FalconDecoderLayer"},
       .names = FalconNames(),
       .lora_targets = {"query_key_value"},
       .read = ReadFalcon},
      {.name = "bloom",
       .model_types = {"bloom"},
       .architectures = {"BloomForCausalLM"},
       .layer_classes = {"BloomBlock"},
       .names = BloomNames(),
       .harmless = BloomHarmlessKeys(),
       .lora_targets = {"query_key_value"},
       .read = ReadBloom},
      {.name = "baichuan",
       .model_types = {"baichuan"},
       .architectures = {"BaichuanForCausalLM", "BaiChuanForCausalLM"},
       .layer_classes = {"DecoderLayer", "BaichuanLayer"},
       .names = BaichuanNames(),
       .read = ReadBaichuan},
  };
}

}  // namespace

std::vector<Family> Families() {
  std::vector<Family> families;
  for (std::vector<Family>& list : std::array{FamiliesLikeLlama(), VariantsOfLlama(), OtherFamilies()})
    std::move(list.begin(), list.end(), std::back_inserter(families));
  return families;
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

void RefuseQuantized(ConfigReader& reader) {
  const nlohmann::json* quantized = reader.Object("quantization_config");
  if (quantized == nullptr || quantized->empty()) return;
  reader.Fail("quantization_config",
              quantized->value("quant_method", nlohmann::json()) == "mxfp4"
                  ? "MXFP4 weights cannot be trained; take a copy in BF16: transformers makes one of "
                    "from_pretrained(MODEL, quantization_config=Mxfp4Config(dequantize=True), dtype=\"bfloat16\") with "
                    "save_pretrained, and loses nothing"
                  : "quantized weights (GPTQ, AWQ, bitsandbytes) cannot be trained; take the model that they were made "
                    "of, in F32, BF16 or F16");
}

std::string ReadWeightsDtype(ConfigReader& config) {
  const std::map<std::string, std::string> names = {
      {"float32", "F32"}, {"bfloat16", "BF16"}, {"float16", "F16"}, {"", ""}};
  std::string dtype;
  for (const char* key : {"torch_dtype", "dtype"}) {
    if (config.String(key, "") == "float64") {
      config.Fail(key,
                  "trained weights are exported in float32 at most; remove this key: F64 files are read without it");
      continue;
    }
    const std::string name = config.Choice(key, names, "");
    if (!name.empty()) dtype = name;
  }
  return dtype;
}

}  // namespace

bool IsLanguageModel(const Family& family, const std::string& architecture) {
  return std::count(family.architectures.begin(), family.architectures.end(), architecture) > 0;
}

std::set<std::string> HarmlessKeys() {
  return {
      // Which program wrote the file, and where it lay.
      "_name_or_path", "_from_model_config", "auto_map", "transformers_version", "tokenizer_class", "_commit_hash",
      "is_llama_config", "unsloth_fixed", "unsloth_version", "transformers.js_config", "_pre_quantization_dtype",
      // How programs that serve or train the model place it.
      "base_model_tp_plan", "base_model_pp_plan", "keys_to_ignore_at_inference",
      // Tokens with a meaning. Samples are packed, so no padding is ever computed; each row of the embedding is
      // trained.
      "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "unk_token_id", "mask_token_id",
      "decoder_start_token_id",
      // What a forward pass hands out, and how it is computed in PyTorch.
      "use_cache", "return_dict", "output_attentions", "output_hidden_states", "torchscript", "gradient_checkpointing",
      "_attn_implementation", "attn_implementation", "use_flash_attention", "_flash_attn_2_enabled",
      "_attn_implementation_autoset", "_attn_implementation_internal", "_experts_implementation", "use_return_dict",
      // Generation.
      "max_length", "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty",
      "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
      "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
      "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
      "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens",
      // Other tasks.
      "task_specific_params", "problem_type", "finetuning_task", "id2label", "label2id", "num_labels",
      "classifier_dropout", "prefix"};
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
      architectures.empty() || std::any_of(architectures.begin(), architectures.end(),
                                           [&](const auto& a) { return IsLanguageModel(family, a); });
  if (!is_language_model) {
    reader.Fail("architectures", absl::StrCat("is not the language model of family ", family.name, "; wanted ",
                                              absl::StrJoin(family.architectures, " or ")));
  }
  RefuseQuantized(reader);
  reader.RefuseUnless("pruned_heads", nlohmann::json::object(), "models changed in this way are not supported");
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
  result.used_keys = reader.used();
  auto status = reader.Finish(absl::StrCat("family ", family.name));
  if (!status.ok()) return status;
  return result;
}

}  // namespace tacc::graph
