#ifndef TACC_GRAPH_IMPORT_CONFIG_PARTS_H_
#define TACC_GRAPH_IMPORT_CONFIG_PARTS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/decoder.h"
#include "graph/import/rope.h"

namespace tacc::graph {

// Limits that keep the elements of any weight inside int64, and ids inside int32.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 28;
inline constexpr int64_t kMaxLayers = 10000;
inline constexpr int64_t kMaxLength = int64_t{1} << 30;

// Parts of config.json that several families share, each read into the spec. `seq_len` is the job's.

// spec.num_kv_heads = `count`, which must divide the heads.
void SetKvHeads(ConfigReader& config, const std::string& key, const std::string& heads_key, int64_t count,
                DecoderSpec& spec);
// spec.head_dim from `key`, or `fallback`; 0: hidden size / heads, which must divide. All heads together have a width
// of at most kMaxWidth.
void ReadHeadDim(ConfigReader& config, const std::string& key, const std::string& heads_key, int64_t fallback,
                 DecoderSpec& spec);
// spec.head_dim = hidden size / heads.
void SetHeadDim(ConfigReader& config, const std::string& heads_key, DecoderSpec& spec);
// Fails when a rotary embedding cannot pair the dims of a head.
void CheckEvenHeads(ConfigReader& config, const std::string& heads_key, int64_t head_dim);
// spec.max_seq_len, which must reach to `seq_len`.
void ReadMaxLength(ConfigReader& config, const std::string& key, int64_t fallback, int64_t seq_len, DecoderSpec& spec);
// Fails `key` when `seq_len` is more than spec.max_seq_len.
void CheckLength(ConfigReader& config, const std::string& key, int64_t seq_len, const DecoderSpec& spec);
// spec.rotary, of all layers; unless it is stretched, max_position_embeddings must reach to the samples' length.
void ReadOneRotary(ConfigReader& config, const RotaryModel& model, DecoderSpec& spec);
// What norms add to keep from dividing by zero: more than 0, also in fp32.
double ReadNormEps(ConfigReader& config, const std::string& key, double fallback);
// Root mean square norms with weights.
NormSpec ReadRmsNorm(ConfigReader& config, const std::string& key, double fallback_eps);
// intermediate_size, hidden_act.
void ReadGatedMlp(ConfigReader& config, int64_t default_intermediate, DecoderSpec& spec);
// initializer_range: matrices and embeddings normal, biases zero, norms one, in all layers alike.
void ReadTransformersInit(ConfigReader& config, DecoderSpec& spec, double fallback = 0.02);
// Key `tie_word_embeddings`.
void ReadTiedHead(ConfigReader& config, bool fallback, DecoderSpec& spec);

// A size that goes by two names. Both at once must agree.
int64_t ReadRenamed(ConfigReader& config, const std::string& key, const std::string& other, int64_t max,
                    int64_t fallback);
Bias ReadBias(ConfigReader& config, const std::string& key, Bias fallback);
double ReadDropout(ConfigReader& config, const std::string& key, double fallback);
// What bends scores or logits under a bound; null: nothing does.
double ReadSoftcap(ConfigReader& config, const std::string& key, std::optional<double> fallback);
DecoderSpec::Activation ReadActivation(ConfigReader& config, const std::string& key, const std::string& fallback);

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

// Reads the rotary embeddings of sliding layers and of the others (ReadLayerRotaries), and checks
// max_position_embeddings against the samples' length.
void ReadRotariesByType(ConfigReader& config, const RotaryModel& model, double full_theta, double sliding_theta,
                        const SlidingLayers& sliding, DecoderSpec& spec);

// The keys use_sliding_window, sliding_window, max_window_layers and layer_types, as Qwen has them: without layer_types
// the layers from max_window_layers on slide, or of Qwen 2 MoE layers 0, 2, ... below it. Of Qwen 3 MoE all do.
enum class QwenWindows { kFromLayer, kEvenLayersBelow, kAllLayers };
void ReadWindowsOfQwen(ConfigReader& config, int64_t seq_len, DecoderSpec& spec,
                       QwenWindows windows = QwenWindows::kFromLayer);

// "normal(STD)".
std::string NormalInit(double std);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_CONFIG_PARTS_H_
