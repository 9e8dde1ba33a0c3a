// What the attention kernels of kernels/cuda share: which rows lie where in the sequence, and who sees whom.
#ifndef TACC_KERNELS_CUDA_ATTENTION_WORK_H_
#define TACC_KERNELS_CUDA_ATTENTION_WORK_H_

#include <cmath>
#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/launch/load.h"
#include "kernels/cuda/philox.h"

namespace tacc::kernels::cuda {

struct RunOfRows {
  int32_t length, position, block;
};

// The runs of queries or of keys.
struct RunsOfRows {
  int32_t num_runs;
  RunOfRows runs[kMaxAttentionRuns];
};

// At most kRows rows that follow each other in memory and in the sequence.
struct RowTile {
  int64_t row;
  int n;
  int64_t position;
  int block;
};

// Tile `index` of the runs.
template <int kRows>
TACC_DEVICE RowTile TileAt(const RunsOfRows& runs, int64_t index) {
  int64_t row = 0;
  for (int i = 0; i < runs.num_runs; ++i) {
    const RunOfRows& run = runs.runs[i];
    const int64_t num_tiles = (run.length + kRows - 1) / kRows, begin = index * kRows;
    if (index < num_tiles) {
      const int64_t left = run.length - begin;
      return {row + begin, static_cast<int>(left < kRows ? left : kRows), run.position + begin, run.block};
    }
    index -= num_tiles;
    row += run.length;
  }
  return {row, 0, 0, -1};
}

template <int kRows>
inline int64_t NumTiles(const RunsOfRows& runs) {
  int64_t num_tiles = 0;
  for (int i = 0; i < runs.num_runs; ++i) num_tiles += (runs.runs[i].length + kRows - 1) / kRows;
  return num_tiles;
}

// Of the probabilities. Without samples none is dropped.
struct WorkDropout {
  const int64_t *step, *sample;
  DropoutKeys keys;
  double scale;
  int64_t first_head, logical_queries, logical_keys;
};

// A call's operands: q, dq [B,S,H,D] with their tokens query_pitch elements apart; k, dk [B,T,K,D], key_pitch; v, dv
// [B,T,K,V], value_pitch; out, dout [B,S,H,V] and lse, delta [B,H,S], dense. D is d, V is value_d.
struct AttentionWork {
  AnyIn q, k, v;
  const int32_t* first_keys;
  const float* key_bias;
  AnyIn bias;
  bool bias_yields;
  int64_t bias_batch, bias_head;  // elements from a sample's, from a head's to the next; 0: the same for all
  double scale;
  int64_t s, t;
  int32_t num_batches, num_heads, num_kv_heads, d, value_d;
  int32_t query_pitch, key_pitch, value_pitch, out_pitch;
  int32_t causal, has_slopes, window;
  double softcap;
  WorkDropout dropout;
  RunsOfRows queries, keys;
  double slopes[kMaxAttentionHeads];

  TACC_DEVICE int64_t QueryOffset(int64_t b, int64_t row, int64_t head) const {
    return (b * s + row) * query_pitch + head * d;
  }
  TACC_DEVICE int64_t KeyOffset(int64_t b, int64_t row, int64_t kv) const { return (b * t + row) * key_pitch + kv * d; }
  TACC_DEVICE int64_t ValueOffset(int64_t b, int64_t row, int64_t kv) const {
    return (b * t + row) * value_pitch + kv * value_d;
  }
  TACC_DEVICE int64_t OutOffset(int64_t b, int64_t row, int64_t head) const {
    return (b * s + row) * out_pitch + head * value_d;
  }
  TACC_DEVICE int64_t StatisticsOffset(int64_t b, int64_t row, int64_t head) const {
    return (b * num_heads + head) * s + row;
  }
  // The first position that query i of a tile sees.
  TACC_DEVICE int64_t FirstKey(int64_t b, const RowTile& tile, int i) const {
    const int64_t first = first_keys == nullptr ? 0 : first_keys[b * s + tile.row + i];
    const int64_t begin = window == 0 ? 0 : tile.position + i + 1 - window;
    return begin > first ? begin : first;
  }
  // Whether some query of the tile, of which none sees a key before position `lowest`, sees some key.
  TACC_DEVICE bool Meet(int64_t b, const RowTile& query_tile, int64_t lowest, const RowTile& key_tile) const {
    return key_tile.block == query_tile.block && key_tile.position + key_tile.n > lowest &&
           (!causal || key_tile.position < query_tile.position + query_tile.n) && !AreHidden(b, key_tile);
  }
  // What is added to the scores of key j of a tile; 0 where there is none.
  TACC_DEVICE float KeyBias(int64_t b, const RowTile& tile, int j) const {
    return key_bias == nullptr || j >= tile.n ? 0.0f : key_bias[b * t + tile.row + j];
  }
  // What is added to the score of query i and key j of two tiles.
  template <typename C>
  TACC_DEVICE C Bias(int64_t b, int64_t head, const RowTile& query_tile, int i, const RowTile& key_tile, int j) const {
    const C of_key = static_cast<C>(KeyBias(b, key_tile, j));
    if (bias.data == nullptr || of_key == -C(INFINITY)) return of_key;
    const C own = bias.Load<C>(BiasOffset(b, head, query_tile.row + i) + key_tile.row + j);
    return own == -C(INFINITY) ? own : of_key + own;
  }
  // Whether the bias has a derivative from the score of query i and key j.
  template <typename C>
  TACC_DEVICE bool HasBiasGrad(int64_t b, int64_t head, const RowTile& query_tile, int i, const RowTile& key_tile,
                               int j) const {
    return !bias_yields || i >= query_tile.n || j >= key_tile.n ||
           Bias<C>(b, head, query_tile, i, key_tile, j) != C(INFINITY);
  }
  TACC_DEVICE int64_t BiasOffset(int64_t b, int64_t head, int64_t row) const {
    return b * bias_batch + head * bias_head + row * t;
  }
  // A score with its bias.
  template <typename C>
  TACC_DEVICE static C Biased(C score, C bias) {
    return bias == C(INFINITY) ? C(0) : score + bias;
  }
  // Whether nobody sees a key of the tile.
  TACC_DEVICE bool AreHidden(int64_t b, const RowTile& tile) const {
    if (key_bias == nullptr) return false;
    int hidden = 0;
    while (hidden < tile.n && KeyBias(b, tile, hidden) == -INFINITY) ++hidden;
    return hidden == tile.n;
  }
  // The lowest first key of a tile's queries.
  TACC_DEVICE int64_t LowestKey(int64_t b, const RowTile& tile) const {
    int64_t lowest = FirstKey(b, tile, 0);
    for (int i = 1; first_keys != nullptr && i < tile.n; ++i) {
      const int64_t first = FirstKey(b, tile, i);
      lowest = first < lowest ? first : lowest;
    }
    return lowest;
  }
  // A scaled score under the cap, and the derivative of the score with respect to the product.
  template <typename C>
  TACC_DEVICE C Capped(C score) const {
    return softcap == 0 ? score : static_cast<C>(softcap) * std::tanh(score / static_cast<C>(softcap));
  }
  template <typename C>
  TACC_DEVICE C Derivative(C product) const {
    if (softcap == 0) return static_cast<C>(scale);
    const C t = std::tanh(product * static_cast<C>(scale / softcap));
    return static_cast<C>(scale) * (1 - t * t);
  }
  // What dropout multiplies the probability with, of query i and key j of two tiles.
  TACC_DEVICE double Kept(int64_t b, int64_t head, const RowTile& query_tile, int i, const RowTile& key_tile,
                          int j) const {
    if (dropout.sample == nullptr) return 1;
    const int64_t element =
        ((dropout.first_head + head) * dropout.logical_queries + query_tile.position + i) * dropout.logical_keys +
        key_tile.position + j;
    const Philox random =
        dropout.keys.RandomOf(static_cast<uint64_t>(element / 4), static_cast<uint64_t>(dropout.sample[b]),
                              static_cast<uint64_t>(*dropout.step));
    return random.Word(element % 4) < dropout.keys.threshold ? 0 : dropout.scale;
  }
  // The score of query i and key j of two tiles, from their product.
  template <typename C>
  TACC_DEVICE C Score(C product, C slope, int64_t b, int64_t head, const RowTile& query_tile, int i, int64_t first,
                      const RowTile& key_tile, int j) const {
    const int64_t query = query_tile.position + i, key = key_tile.position + j;
    if (i >= query_tile.n || j >= key_tile.n || key < first || (causal && key > query)) return -C(INFINITY);
    const C score = Capped(product * static_cast<C>(scale));
    return Biased(slope == 0 ? score : score + slope * static_cast<C>(key - query),
                  Bias<C>(b, head, query_tile, i, key_tile, j));
  }
};

// AttentionKernels::AttentionBiasGrad (attention_bias.cu).
void AttentionBiasGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                       const AttentionParameters& parameters, const TensorView& dbias);

// Checks the operands.
AttentionWork WorkOf(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& first_keys,
                     const AttentionParameters& parameters);

// delta[b, h, s] = dout . out over a head's row: the part of the softmax's derivative that all keys share. A team a row
// of dout.
template <typename C>
struct AttentionDelta {
  AnyIn dout, out;
  C* delta;
  int64_t s, num_heads, d;

  TACC_DEVICE void operator()(Team& team, int64_t row) const {
    C dot = 0;
    for (int64_t i = team.rank(); i < d; i += team.size()) dot += dout.Load<C>(row * d + i) * out.Load<C>(row * d + i);
    dot = team.Sum(dot);
    const int64_t head = row % num_heads, position = row / num_heads % s, b = row / num_heads / s;
    if (team.rank() == 0) delta[(b * num_heads + head) * s + position] = dot;
  }
};

template <typename C>
void FindAttentionDelta(const AttentionWork& work, const TensorView& dout, const TensorView& out, C* delta) {
  ForEachTeam(out.dims.Product(0, 3), kWarp, 0,
              AttentionDelta<C>{In(dout), In(out), delta, work.s, work.num_heads, work.value_d});
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ATTENTION_WORK_H_
