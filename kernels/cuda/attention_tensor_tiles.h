// Attention on tensor cores. A warp has kMma rows of a tile of scores, kMma * 2 = kRows columns wide; its threads 2r
// and 2r + 1 have the halves of row r. Scores and results leave the tensor cores by way of shared memory, where each
// warp has room for kMma x kRows numbers.
#ifndef TACC_KERNELS_CUDA_ATTENTION_TENSOR_TILES_H_
#define TACC_KERNELS_CUDA_ATTENTION_TENSOR_TILES_H_

#include <cmath>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/tensor_core.h"

namespace tacc::kernels::cuda::tensor_tiles {

inline constexpr int kD = 128;    // Room for head dims up to it: what lies behind d is neither loaded nor multiplied.
inline constexpr int kRows = 32;  // of a tile of keys; in the gradients of queries too
inline constexpr int kOwn = kRows / 2;  // scores of a row that a thread has
inline constexpr int kScorePitch = kRows + 4;
inline constexpr int kWeightPitch = kRows + kPack;
inline constexpr int kWarpScores = kMma * kScorePitch;  // floats of a warp
static_assert(kRows == 2 * kMma && kWarp == 2 * kMma && kMma * kWeightPitch * 2 <= kWarpScores * 4);

// Where a thread's row and columns are among those of its warp.
struct Place {
  int warp, row, column;

  TACC_DEVICE explicit Place(const Team& team)
      : warp(team.rank() / kWarp), row(team.rank() % kWarp / 2), column(team.rank() % 2 * kOwn) {}
};

// rows [kHeight, kD + kPack] in shared memory = n rows, `stride` elements apart, of d elements each; else 0.
template <int kHeight, int kTeam, typename E>
TACC_DEVICE void LoadRows(const Team& team, const AnyIn& x, int64_t offset, int64_t stride, int n, int d, E* rows) {
  constexpr int kPacks = kD / kPack, kEach = kHeight * kPacks / kTeam;
  static_assert(kEach * kTeam == kHeight * kPacks);
  Pack16 packs[kEach];
  TACC_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int p = team.rank() + i * kTeam, row = p / kPacks, column = p % kPacks * kPack;
    packs[i] = {};
    if (row < n && column < d) packs[i] = LoadPack16<E>(x.data, offset + row * stride + column);
  }
  TACC_UNROLL
  for (int i = 0; i < kEach; ++i) {
    const int p = team.rank() + i * kTeam;
    if (p % kPacks * kPack >= d + kPack) continue;  // A product takes kMma terms: after d's last pack one of zeros.
    StorePack16<E>(packs[i], rows, p / kPacks * (kD + kPack) + p % kPacks * kPack);
  }
}

// products[j] = kMma rows of `left` times the rows [kMma * j, kMma * (j + 1)) of `right`, each of kD elements.
template <typename E>
TACC_DEVICE void MultiplyRows(const Team& team, int d, const E* left, const E* right, SumTile (&products)[2]) {
  constexpr int kPitch = kD + kPack;
  products[0].Clear();
  products[1].Clear();
  TACC_UNROLL
  for (int c = 0; c < kD; c += kMma) {
    if (c >= d) break;
    LeftTile<E, Major::kRow> l;
    l.Load(left + c, kPitch);
    TACC_UNROLL
    for (int j = 0; j < 2; ++j) {
      RightTile<E, Major::kColumn> r;
      r.Load(right + j * kMma * kPitch + c, kPitch);
      products[j].Add(team, l, r);
    }
  }
}

TACC_DEVICE inline void StoreScores(const Team& team, const SumTile& first, const SumTile& second, float* scores) {
  first.Store(team, scores, kScorePitch);
  second.Store(team, scores + kMma, kScorePitch);
}

// A thread's own columns of its row.
TACC_DEVICE inline void LoadOwn(const float* scores, const Place& place, float (&own)[kOwn]) {
  TACC_UNROLL
  for (int j = 0; j < kOwn; j += kPack)
    LoadPacked<kPack, float>(scores, place.row * kScorePitch + place.column + j, own + j);
}

// Which keys [low, high) of a tile a query sees, and how far behind it key 0 is.
struct Sight {
  int low, high;
  float distance;

  TACC_DEVICE Sight(const AttentionWork& w, const RowTile& queries, int i, int64_t first, const RowTile& keys) {
    const int64_t query = queries.position + i, behind = keys.position - query, begin = first - keys.position;
    int64_t end = keys.n;
    if (w.causal && 1 - behind < end) end = 1 - behind;
    low = static_cast<int>(begin < 0 ? 0 : begin > kRows ? kRows : begin);
    high = i < queries.n && end > 0 ? static_cast<int>(end) : 0;
    distance = static_cast<float>(behind);
  }
};

TACC_DEVICE inline float ScoreOf(const AttentionWork& w, float product, float scale, float slope, float distance) {
  return w.Capped(product * scale) + slope * distance;
}

// What the gradients share.
template <typename E>
struct GradOnTensorCores {
  static constexpr int kTeam = kRows / kMma * kWarp, kPitch = kD + kPack, kTile = kRows * kPitch;
  // Four tiles; a warp's scores and their gradients; a query's statistics.
  static constexpr int kNumScores = kTeam / kWarp * 2 * kWarpScores;
  static constexpr int64_t kSharedBytes = 4 * kTile * sizeof(E) + (kNumScores + 5 * kRows) * sizeof(float);

  AttentionWork work;
  int64_t num_query_tiles, num_key_tiles;
  AnyIn dout, lse;
  const float* delta;

  TACC_DEVICE void LoadQueries(const Team& team, int64_t b, int64_t head, const RowTile& tile, E* q_rows,
                               E* dout_rows) const {
    LoadRows<kRows, kTeam>(team, work.q, work.QueryOffset(b, tile.row, head), work.query_pitch, tile.n, work.d, q_rows);
    LoadRows<kRows, kTeam>(team, dout, work.OutOffset(b, tile.row, head), work.out_pitch, tile.n, work.d, dout_rows);
  }
  TACC_DEVICE void LoadKeys(const Team& team, int64_t b, int64_t kv, const RowTile& tile, E* k_rows, E* v_rows) const {
    const int64_t offset = work.KeyOffset(b, tile.row, kv);
    LoadRows<kRows, kTeam>(team, work.k, offset, work.key_pitch, tile.n, work.d, k_rows);
    LoadRows<kRows, kTeam>(team, work.v, offset, work.key_pitch, tile.n, work.d, v_rows);
  }
  // Of query i of a tile; 0 where there is none.
  TACC_DEVICE float Lse(int64_t b, int64_t head, const RowTile& tile, int i) const {
    if (i >= tile.n) return 0;
    const float value = lse.Load<float>(work.StatisticsOffset(b, tile.row + i, head));
    return value == -INFINITY ? 0.0f : value;  // Sees no key: has no weights.
  }
  TACC_DEVICE float Delta(int64_t b, int64_t head, const RowTile& tile, int i) const {
    return i < tile.n ? delta[work.StatisticsOffset(b, tile.row + i, head)] : 0.0f;
  }
  // own, own_gradients: what a thread has of the products of both pairs of tiles, by way of a warp's scores.
  TACC_DEVICE void MultiplyPairs(Team& team, const Place& place, const E* left, const E* right, const E* left_gradient,
                                 const E* right_gradient, float* scores, float (&own)[kOwn],
                                 float (&own_gradients)[kOwn]) const {
    const int row = place.warp * kMma * kPitch;
    SumTile products[2];
    MultiplyRows(team, work.d, left + row, right, products);
    StoreScores(team, products[0], products[1], scores);
    MultiplyRows(team, work.d, left_gradient + row, right_gradient, products);
    StoreScores(team, products[0], products[1], scores + kWarpScores);
    team.Sync();
    LoadOwn(scores, place, own);
    LoadOwn(scores + kWarpScores, place, own_gradients);
  }
};

}  // namespace tacc::kernels::cuda::tensor_tiles

#endif  // TACC_KERNELS_CUDA_ATTENTION_TENSOR_TILES_H_
