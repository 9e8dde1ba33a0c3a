#include "graph/import/windows.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "graph/import/config_parts.h"

namespace tacc::graph {

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

void ReadWindowsOfQwen(ConfigReader& config, int64_t seq_len, DecoderSpec& spec) {
  if (!config.Bool("use_sliding_window", false)) {
    config.Harmless({"sliding_window", "max_window_layers"});
    const SlidingLayers layers = ReadLayerTypes(config, spec, [](int64_t) { return false; });
    if (std::count(layers.begin(), layers.end(), 1) > 0)
      config.Fail("layer_types", "\"sliding_attention\" needs use_sliding_window = true");
    return;
  }
  const int64_t first = config.Int("max_window_layers", 0, kMaxLayers, 28);
  ReadWindow(config, 4096, ReadLayerTypes(config, spec, [first](int64_t layer) { return layer >= first; }), seq_len,
             spec);
}

}  // namespace tacc::graph
