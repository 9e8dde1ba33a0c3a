// Rotary position embeddings as config.json states them, plain and scaled.
#ifndef TACC_GRAPH_IMPORT_ROPE_H_
#define TACC_GRAPH_IMPORT_ROPE_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/import/config_reader.h"
#include "graph/import/decoder/rotary.h"

namespace tacc::graph {

// Plain rotary embedding of the first `dim` dims: 1 / theta^(2i/dim).
Rotary PlainRotary(double theta, int64_t dim);

// What the scaled kinds need to know of the model.
struct RotaryModel {
  int64_t head_dim = 0;
  int64_t seq_len = 0;
  int64_t max_position_embeddings = 0;
  double default_theta = 10000.0;
  const char* theta_key = "rope_theta";
  const char* partial_key = "partial_rotary_factor";
  // Default of partial_rotary_factor, the share of a head's dims that is rotated; absent: whole heads, the key is
  // refused.
  std::optional<double> partial_factor;
  // Of longrope: the length up to which samples are short; 0: original_max_position_embeddings beside the factors.
  int64_t original_length = 0;
  // All kinds; or, as Phi 3, default and longrope, which has also been called su and yarn.
  enum Kinds { kAll, kLong } kinds = kAll;
  // What an absent rope_parameters says; null: nothing.
  nlohmann::json absent;
};

// Reads rope_theta and rope_parameters (or the older rope_scaling) as transformers 5 does, and computes frequencies as
// it does, in fp32 and in its order of operations. Kinds: default, linear, dynamic, llama3, longrope, yarn; any other
// is refused by name. Pairs are those of the family: kHalves is returned. Sources: Peng et al., YaRN, arXiv 2309.00071,
// section 3; Ding et al., LongRoPE, arXiv 2402.13753, section 3; transformers, modeling_rope_utils.py.
Rotary ReadRotary(ConfigReader& config, const RotaryModel& model);

// Of layers that see all keys, and of those that see a window of them.
struct LayerRotaries {
  Rotary full, sliding;
};
// Reads rope_parameters with an object for each type of layer, or the older rope_scaling, which is for full layers.
// Thetas are those of objects that say none.
LayerRotaries ReadLayerRotaries(ConfigReader& config, const RotaryModel& model, double full_theta,
                                double sliding_theta);

// ALiBi's slope of each head, for a number of heads that need not be a power of two.
// Source: Press et al., Train Short, Test Long, arXiv 2108.12409, section 3, and its published code.
std::vector<double> AlibiSlopes(int64_t num_heads);

// The slopes of `ai2-olmo`: 2^-(max_bias h / heads) for head h = 1...
std::vector<double> OlmoAlibiSlopes(int64_t num_heads, double max_bias);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IMPORT_ROPE_H_
