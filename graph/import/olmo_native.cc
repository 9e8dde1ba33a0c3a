#include "graph/import/olmo_native.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"
#include "graph/import/rope.h"
#include "graph/ir/text.h"

namespace tacc::graph {
namespace {

// A normal distribution, or one without its tails.
std::string CutNormal(double std, std::optional<double> cutoff_factor) {
  if (!cutoff_factor.has_value() || std == 0) return NormalInit(std);
  return absl::StrCat("truncated_normal(", Print(Attr(std)), ",", Print(Attr(*cutoff_factor * std)), ")");
}

enum class InitFn { kNormal, kMitchell, kFullMegatron };

void ReadInit(ConfigReader& config, DecoderSpec& spec) {
  const auto fn = config.Choice<InitFn>(
      "init_fn",
      {{"normal", InitFn::kNormal}, {"mitchell", InitFn::kMitchell}, {"full_megatron", InitFn::kFullMegatron}},
      "normal");
  const double std = config.Float("init_std", 0, 100, 0.02);
  std::optional<double> cutoff = config.OptionalFloat("init_cutoff_factor", 1e-3, 100);
  if (fn != InitFn::kNormal && !cutoff.has_value()) cutoff = 3.0;
  const auto embedding_std = config.OptionalFloat("emb_init_std", 0, 100);
  const bool scale_embedding = config.Bool("scale_emb_init", false);
  const double width = static_cast<double>(spec.hidden_size);
  const double inner = static_cast<double>(spec.intermediate_size);
  const double width_std = 1 / std::sqrt(width);
  const double layers = static_cast<double>(spec.num_layers);
  double embedding = std, positions = std, input = std, head = std;
  std::function<double(int64_t)> out = [std](int64_t) { return std; };
  std::function<double(int64_t)> down = out;
  if (fn == InitFn::kMitchell) {
    embedding = positions = input = head = width_std;
    out = [width](int64_t layer) { return 1 / std::sqrt(2 * width * static_cast<double>(layer + 1)); };
    down = [inner](int64_t layer) { return 1 / std::sqrt(2 * inner * static_cast<double>(layer + 1)); };
  } else if (fn == InitFn::kFullMegatron) {
    if (scale_embedding) embedding *= std::sqrt(width);
    head = width_std;
    out = down = [std, layers](int64_t) { return std / std::sqrt(2 * layers); };
  }
  if (embedding_std.has_value() && *embedding_std > 0) embedding = *embedding_std;
  spec.init = {CutNormal(embedding, cutoff),
               CutNormal(positions, cutoff),
               CutNormal(head, cutoff),
               CutNormal(input, cutoff),
               [out, cutoff](int64_t layer) { return CutNormal(out(layer), cutoff); },
               [down, cutoff](int64_t layer) { return CutNormal(down(layer), cutoff); }};
  spec.init.key = "init_std";
}

// n_kv_heads, or the older multi_query_attention.
void ReadKvHeads(ConfigReader& config, DecoderSpec& spec) {
  const bool has_old = config.Has("multi_query_attention");
  const int64_t old = config.Bool("multi_query_attention", false) ? 1 : spec.num_heads;
  SetKvHeads(config, "n_kv_heads", "n_heads", config.Int("n_kv_heads", 1, kMaxWidth, old), spec);
  if (has_old && spec.num_kv_heads != old) {
    config.Fail("n_kv_heads", absl::StrCat("multi_query_attention asks for ", old));
  }
}

void ReadNorms(ConfigReader& config, DecoderSpec& spec) {
  const auto kind = config.Choice<NormSpec::Kind>(
      "layer_norm_type", {{"default", NormSpec::kLayer}, {"low_precision", NormSpec::kLayer}, {"rms", NormSpec::kRms}},
      "default");
  const bool linear_bias = config.Bool("include_bias", true);
  const bool norm_bias = config.Bool("bias_for_layer_norm", linear_bias);
  const Affine learned = norm_bias ? Affine::kWeightBias : Affine::kWeight;
  const double eps = ReadNormEps(config, "layer_norm_eps", 1e-5);
  spec.norm = {kind, config.Bool("layer_norm_with_affine", true) ? learned : Affine::kNone, eps};
  if (config.Bool("embedding_layer_norm", false)) spec.embedding_norm = spec.norm;
  const bool qk_affine = config.Bool("attention_layer_norm_with_affine", true);
  if (config.Bool("attention_layer_norm", false))
    spec.qk_norm = NormSpec{kind, qk_affine ? learned : Affine::kNone, eps};
  spec.qk_norm_over = DecoderSpec::kAllHeads;
  if (config.Bool("norm_after", false)) {  // of a branch: on what it adds
    std::swap(spec.names.attention_norm, spec.names.attention_post_norm);
    std::swap(spec.names.mlp_norm, spec.names.mlp_post_norm);
  }
  spec.qkv_bias = spec.attention_out_bias = spec.mlp_bias = spec.head_bias = linear_bias ? Bias::kPresent : Bias::kNone;
}

void ReadPositions(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  ReadMaxLength(config, "max_sequence_length", 1024, seq_len, spec);
  const bool alibi = config.Bool("alibi", false);
  const bool rope = config.Bool("rope", false);
  const double max_bias = config.Float("alibi_bias_max", 1e-6, 1e6, 8.0);
  const double theta = config.Float("rope_theta", 1e-6, 1e30, 10000.0);
  if (alibi && rope) config.Fail("rope", "alibi is true too; only one of them is possible");
  if (alibi) {
    spec.alibi_slopes = OlmoAlibiSlopes(spec.num_heads, max_bias);
  } else if (!rope) {
    spec.learned_positions = spec.max_seq_len;
  } else {
    CheckEvenHeads(config, "n_heads", spec.head_dim);
    spec.rotary = PlainRotary(theta, spec.head_dim);
  }
}

void ReadMlp(ConfigReader& config, DecoderSpec& spec) {
  enum class Kind { kSwiglu, kGelu, kRelu };
  const int64_t ratio = config.Int("mlp_ratio", 1, 1024, 4);
  int64_t width = config.Int("mlp_hidden_size", 1, kMaxWidth, ratio * spec.hidden_size);
  const Kind kind = config.Choice<Kind>(
      "activation_type", {{"swiglu", Kind::kSwiglu}, {"gelu", Kind::kGelu}, {"relu", Kind::kRelu}}, "swiglu");
  if (kind == Kind::kSwiglu) {
    if (width % 2 != 0) config.Fail("mlp_hidden_size", absl::StrCat(width, " is odd; SwiGLU halves it"));
    width /= 2;  // gate and value share it
  }
  spec.intermediate_size = std::max<int64_t>(1, width);
  spec.mlp_kind = kind == Kind::kSwiglu ? DecoderSpec::kUpGate : DecoderSpec::kPlain;
  spec.activation = kind == Kind::kSwiglu ? DecoderSpec::kSilu
                    : kind == Kind::kGelu ? DecoderSpec::kGelu
                                          : DecoderSpec::kRelu;
}

}  // namespace

DecoderNames NativeOlmoNames() {
  DecoderNames names;
  names.base = "model.";
  names.embedding = "model.transformer.wte";
  names.embedding_norm = "model.transformer.emb_norm";
  names.positions = "model.transformer.wpe";
  names.layer = "model.transformer.blocks.{layer}";
  names.final_norm = "model.transformer.ln_f";
  names.head = "model.transformer.ff_out";
  names.attention = names.mlp = "";
  names.attention_norm = "attn_norm";
  names.qkv = "att_proj";
  names.q_norm = "q_norm";
  names.k_norm = "k_norm";
  names.attention_out = "attn_out";
  names.mlp_norm = "ff_norm";
  names.fused_mlp = names.up = "ff_proj";
  names.down = "ff_out";
  return names;
}

std::set<std::string> NativeOlmoHarmlessKeys() {
  // flash_attention: another kernel; rope_full_precision: rotary embeddings are always computed in fp32 here;
  // init_device: where weights are drawn; precision: overridden by the trainer.
  return {"flash_attention", "rope_full_precision", "init_device", "precision"};
}

void ReadNativeOlmo(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  spec.hidden_size = config.Int("d_model", 1, kMaxWidth, 768);
  spec.num_layers = config.Int("n_layers", 1, kMaxLayers, 12);
  spec.num_heads = config.Int("n_heads", 1, kMaxWidth, 12);
  SetHeadDim(config, "n_heads", spec);
  ReadKvHeads(config, spec);
  config.RefuseUnless("block_type", "sequential", "blocks of this type are not supported, only \"sequential\"");
  spec.layers_per_group = config.Int("block_group_size", 1, kMaxLayers, 1);
  if (spec.layers_per_group > 1) spec.names.layer = "model.transformer.block_groups.{group}.{member}";
  if (spec.num_layers % spec.layers_per_group != 0) {
    config.Fail("block_group_size", absl::StrCat("does not divide n_layers = ", spec.num_layers));
  }
  const int64_t vocab_size = config.Int("vocab_size", 1, kMaxVocabulary, 50257);
  // An absent key takes the class's default; null means vocab_size.
  spec.vocab_rows =
      config.Int("embedding_size", 1, kMaxVocabulary, config.Present("embedding_size") ? vocab_size : 50304);
  if (spec.vocab_rows < vocab_size)
    config.Fail("embedding_size", absl::StrCat("is less than vocab_size = ", vocab_size));
  ReadNorms(config, spec);
  ReadPositions(config, seq_len, spec);
  ReadMlp(config, spec);
  spec.qkv_layout = DecoderSpec::kStacked;
  spec.clip_qkv = config.OptionalFloat("clip_qkv", 1e-30, 1e30);
  spec.embedding_dropout = ReadDropout(config, "embedding_dropout", 0.1);
  spec.residual_dropout = ReadDropout(config, "residual_dropout", 0.1);
  spec.attention_dropout = ReadDropout(config, "attention_dropout", 0.1);
  if (config.Bool("weight_tying", true)) spec.head = DecoderSpec::kTiedHead;
  // transformers' own key, which this class ignores.
  config.Harmless({"tie_word_embeddings"});
  if (config.Bool("scale_logits", false)) spec.logit_scale = 1 / std::sqrt(static_cast<double>(spec.hidden_size));
  ReadInit(config, spec);
}

}  // namespace tacc::graph
