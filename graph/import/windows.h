#ifndef TACC_GRAPH_IMPORT_WINDOWS_H_
#define TACC_GRAPH_IMPORT_WINDOWS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/import/config_reader.h"
#include "graph/import/decoder.h"

namespace tacc::graph {

// Sliding windows: layers whose tokens see some of the tokens before them alone.

// Which layers slide.
using SlidingLayers = std::vector<char>;
SlidingLayers AllLayersSlide(const DecoderSpec& spec);
// Key `layer_types`, a name for each layer; absent: those of which `is_sliding` says so.
SlidingLayers ReadLayerTypes(ConfigReader& config, const DecoderSpec& spec,
                             const std::function<bool(int64_t layer)>& is_sliding);

// Gives the sliding layers the key `sliding_window`, if any slides. An absent key means `fallback`, null no window; one
// that holds a whole sample leaves nothing out.
void ReadWindow(ConfigReader& config, int64_t fallback, const SlidingLayers& layers, int64_t seq_len,
                DecoderSpec& spec);

// Reads the rotary embeddings of sliding layers and of the others (ReadLayerRotaries), and checks max_position_embeddings
// against the samples' length.
void ReadRotariesByType(ConfigReader& config, const RotaryModel& model, double full_theta, double sliding_theta,
                        const SlidingLayers& sliding, DecoderSpec& spec);

// The keys use_sliding_window, sliding_window, max_window_layers and layer_types, as Qwen has them.
void ReadWindowsOfQwen(ConfigReader& config, int64_t seq_len, DecoderSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_WINDOWS_H_
