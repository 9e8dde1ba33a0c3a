#include "graph/import/config_parts.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"

namespace tacc::graph {

void SetKvHeads(ConfigReader& config, const std::string& key, const std::string& heads_key, int64_t count,
                DecoderSpec& spec) {
  spec.num_kv_heads = count;
  if (spec.num_heads % count == 0) return;
  config.Fail(key, absl::StrCat(count, " key-value heads do not divide ", heads_key, " = ", spec.num_heads));
}

void ReadHeadDim(ConfigReader& config, const std::string& key, const std::string& heads_key, int64_t fallback,
                 DecoderSpec& spec) {
  const int64_t head_dim = config.OptionalInt(key, 1, kMaxWidth).value_or(fallback);
  if (head_dim == 0) return SetHeadDim(config, heads_key, spec);
  spec.head_dim = head_dim;
  if (spec.num_heads * head_dim > kMaxWidth) {
    config.Fail(key, absl::StrCat(spec.num_heads, " heads of ", head_dim, " are wider than ", kMaxWidth));
  }
}

void SetHeadDim(ConfigReader& config, const std::string& heads_key, DecoderSpec& spec) {
  if (spec.hidden_size % spec.num_heads != 0) {
    config.Fail(heads_key, absl::StrCat(spec.num_heads, " heads do not divide the hidden size ", spec.hidden_size));
  }
  spec.head_dim = std::max<int64_t>(1, spec.hidden_size / spec.num_heads);
}

void CheckEvenHeads(ConfigReader& config, const std::string& heads_key, int64_t head_dim) {
  if (head_dim % 2 == 0) return;
  config.Fail(heads_key, absl::StrCat("rotary embeddings need heads of even size, got ", head_dim));
}

void ReadMaxLength(ConfigReader& config, const std::string& key, int64_t fallback, int64_t seq_len, DecoderSpec& spec) {
  spec.max_seq_len = config.Int(key, 1, kMaxLength, fallback);
  CheckLength(config, key, seq_len, spec);
}

void CheckLength(ConfigReader& config, const std::string& key, int64_t seq_len, const DecoderSpec& spec) {
  if (seq_len <= spec.max_seq_len) return;
  config.Fail(key, absl::StrCat("the model takes at most ", spec.max_seq_len,
                                " tokens, but samples have data.seq_len = ", seq_len));
}

void ReadOneRotary(ConfigReader& config, const RotaryModel& model, DecoderSpec& spec) {
  spec.rotary = ReadRotary(config, model);
  if (spec.rotary->any_length) {
    spec.max_seq_len = 0;
  } else {
    CheckLength(config, "max_position_embeddings", model.seq_len, spec);
  }
}

double ReadNormEps(ConfigReader& config, const std::string& key, double fallback) {
  return config.Float(key, 1e-30, 1, fallback);
}

NormSpec ReadRmsNorm(ConfigReader& config, const std::string& key, double fallback_eps) {
  return {NormSpec::kRms, Affine::kWeight, ReadNormEps(config, key, fallback_eps)};
}

void ReadGatedMlp(ConfigReader& config, int64_t default_intermediate, DecoderSpec& spec) {
  spec.intermediate_size = config.Int("intermediate_size", 1, kMaxWidth, default_intermediate);
  spec.activation = ReadActivation(config, "hidden_act", "silu");
}

void ReadTransformersInit(ConfigReader& config, DecoderSpec& spec, double fallback) {
  const std::string init = NormalInit(config.Float("initializer_range", 0.0, 1.0, fallback));
  spec.init = {init, init, init, init, [init](int64_t) { return init; }, [init](int64_t) { return init; }};
  spec.init.key = "initializer_range";
}

void ReadTiedHead(ConfigReader& config, bool fallback, DecoderSpec& spec) {
  spec.head = config.Bool("tie_word_embeddings", fallback) ? DecoderSpec::kTiedHead : DecoderSpec::kOwnHead;
  spec.stored_head_counts = true;
}

int64_t ReadRenamed(ConfigReader& config, const std::string& key, const std::string& other, int64_t max,
                    int64_t fallback) {
  const auto first = config.OptionalInt(key, 1, max);
  const auto second = config.OptionalInt(other, 1, max);
  if (first.has_value() && second.has_value() && *first != *second) {
    config.Fail(other, absl::StrCat("says another size than ", key, " = ", *first));
  }
  return first.value_or(second.value_or(fallback));
}

Bias ReadBias(ConfigReader& config, const std::string& key, Bias fallback) {
  return config.Bool(key, fallback == Bias::kPresent) ? Bias::kPresent : Bias::kNone;
}

double ReadDropout(ConfigReader& config, const std::string& key, double fallback) {
  return config.Float(key, 0.0, 0.999, fallback);
}

double ReadSoftcap(ConfigReader& config, const std::string& key, std::optional<double> fallback) {
  if (config.Present(key)) fallback = std::nullopt;
  return config.OptionalFloat(key, 1e-6, 1e30).value_or(fallback.value_or(0));
}

DecoderSpec::Activation ReadActivation(ConfigReader& config, const std::string& key, const std::string& fallback) {
  return config.Choice<DecoderSpec::Activation>(key,
                                                {{"silu", DecoderSpec::kSilu},
                                                 {"swish", DecoderSpec::kSilu},
                                                 {"gelu", DecoderSpec::kGelu},
                                                 {"gelu_new", DecoderSpec::kGeluTanh},
                                                 {"gelu_pytorch_tanh", DecoderSpec::kGeluTanh},
                                                 {"relu", DecoderSpec::kRelu}},
                                                fallback);
}

SlidingLayers AllLayersSlide(const DecoderSpec& spec) { return SlidingLayers(static_cast<size_t>(spec.num_layers), 1); }

SlidingLayers ReadLayerTypes(ConfigReader& config, const DecoderSpec& spec,
                             const std::function<bool(int64_t layer)>& is_sliding) {
  SlidingLayers layers;
  for (int64_t layer = 0; layer < spec.num_layers; ++layer) layers.push_back(is_sliding(layer) ? 1 : 0);
  const std::vector<std::string> types = config.Strings("layer_types");
  if (types.empty()) return layers;
  for (const std::string& type : types) {
    if (type == "full_attention" || type == "sliding_attention") continue;
    config.Fail("layer_types", absl::StrCat("layers of type \"", type, "\" are not supported"));
    return layers;
  }
  if (types.size() != layers.size()) {
    config.Fail("layer_types", absl::StrCat("has ", types.size(), " entries for num_hidden_layers = ", layers.size()));
    return layers;
  }
  for (size_t i = 0; i < types.size(); ++i) layers[i] = types[i] == "sliding_attention" ? 1 : 0;
  return layers;
}

void ReadWindow(ConfigReader& config, int64_t fallback, const SlidingLayers& layers, int64_t seq_len,
                DecoderSpec& spec) {
  if (std::count(layers.begin(), layers.end(), 1) == 0) return config.Harmless({"sliding_window"});
  const int64_t absent = config.Present("sliding_window") ? kMaxLength : fallback;
  const int64_t window = config.Int("sliding_window", 1, kMaxLength, absent);
  if (window >= seq_len) return;
  spec.layers.resize(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i] != 0) spec.layers[i].window = window;
  }
}

void ReadRotariesByType(ConfigReader& config, const RotaryModel& model, double full_theta, double sliding_theta,
                        const SlidingLayers& sliding, DecoderSpec& spec) {
  const LayerRotaries rotaries = ReadLayerRotaries(config, model, full_theta, sliding_theta);
  spec.rotary = rotaries.full;
  if (rotaries.full.any_length) {
    spec.max_seq_len = 0;
  } else {
    CheckLength(config, "max_position_embeddings", model.seq_len, spec);
  }
  if (rotaries.sliding.inv_freq == rotaries.full.inv_freq &&
      rotaries.sliding.attention_scale == rotaries.full.attention_scale)
    return;
  spec.local_rotary = rotaries.sliding;
  spec.layers.resize(sliding.size());
  for (size_t i = 0; i < sliding.size(); ++i) {
    if (sliding[i] != 0) spec.layers[i].positions = DecoderSpec::Layer::kLocalRotary;
  }
}

void ReadWindowsOfQwen(ConfigReader& config, int64_t seq_len, DecoderSpec& spec, QwenWindows windows) {
  if (!config.Bool("use_sliding_window", false)) {
    config.Harmless({"sliding_window", "max_window_layers"});
    const SlidingLayers layers = ReadLayerTypes(config, spec, [](int64_t) { return false; });
    if (std::count(layers.begin(), layers.end(), 1) > 0)
      config.Fail("layer_types", "\"sliding_attention\" needs use_sliding_window = true");
    return;
  }
  const bool all = windows == QwenWindows::kAllLayers;
  if (all) config.Harmless({"max_window_layers"});
  const int64_t first = all ? 0 : config.Int("max_window_layers", 0, kMaxLayers, 28);
  const SlidingLayers layers = ReadLayerTypes(config, spec, [&](int64_t layer) {
    return windows == QwenWindows::kEvenLayersBelow ? layer < first && layer % 2 == 0 : layer >= first;
  });
  if (all && std::count(layers.begin(), layers.end(), 0) > 0)
    config.Fail("layer_types", "with use_sliding_window all layers of this family slide");
  ReadWindow(config, 4096, layers, seq_len, spec);
}

std::string NormalInit(double std) { return std == 0 ? "zeros" : absl::StrCat("normal(", Print(Attr(std)), ")"); }

}  // namespace tacc::graph
