// Attention in tiles of shared memory, by teams of kTeam threads in 8 x 8. Thread (ty, tx) owns, of a tile of scores,
// rows ty, ty + 8, ... and columns tx, tx + 8, ...; and of a tile of results the same rows and the columns tx, tx + 8,
// ... of the head dim.
#ifndef TACC_KERNELS_CUDA_ATTENTION_TILES_H_
#define TACC_KERNELS_CUDA_ATTENTION_TILES_H_

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/scratch.h"

// For the loops around those over a thread's own numbers, so that compiling does not take minutes.
#ifdef __CUDACC__
#define TACC_DO_NOT_UNROLL _Pragma("unroll 1")
#else
#define TACC_DO_NOT_UNROLL
#endif

namespace tacc::kernels::cuda::tiles {

inline constexpr int kSide = 8;
inline constexpr int kTeam = kSide * kSide;

// Rows of a tile of a gradient, so that the tiles of a team fit into kMaxSharedBytes.
template <typename C, int kD>
constexpr int kBackwardRows =
    8192 / (kD * static_cast<int>(sizeof(C))) < 32 ? 8192 / (kD * static_cast<int>(sizeof(C))) : 32;

// rows [kRows, kD + 1] in shared memory = n rows, `stride` elements apart, of d elements each; else 0.
template <int kRows, int kD, typename C>
TACC_DEVICE void LoadTile(const Team& team, const AnyIn& x, int64_t offset, int64_t stride, int n, int d, C* rows) {
  TACC_DO_NOT_UNROLL
  for (int i = team.rank(); i < kRows * kD; i += kTeam) {
    const int row = i / kD, column = i % kD;
    rows[row * (kD + 1) + column] = row < n && column < d ? x.Load<C>(offset + row * stride + column) : C(0);
  }
}

// products[i][j] = a's row ty + 8 i times b's row tx + 8 j.
template <int kRows, int kD, typename C>
TACC_DEVICE void MultiplyRows(const C* a, const C* b, int ty, int tx, int d,
                              C (&products)[kRows / kSide][kRows / kSide]) {
  constexpr int kOwn = kRows / kSide, kStride = kD + 1;
  TACC_UNROLL
  for (int i = 0; i < kOwn; ++i) {
    TACC_UNROLL
    for (int j = 0; j < kOwn; ++j) products[i][j] = 0;
  }
  TACC_DO_NOT_UNROLL
  for (int c = 0; c < d; ++c) {
    C left[kOwn], right[kOwn];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) left[i] = a[(ty + kSide * i) * kStride + c];
    TACC_UNROLL
    for (int j = 0; j < kOwn; ++j) right[j] = b[(tx + kSide * j) * kStride + c];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) products[i][j] += left[i] * right[j];
    }
  }
}

// What the gradients share.
template <typename C, int kD>
struct AttentionGradWork {
  static constexpr int kRows = kBackwardRows<C, kD>;
  static constexpr int kOwn = kRows / kSide, kColumns = kD / kSide;
  static constexpr int kTile = kRows * (kD + 1), kScores = kRows * (kRows + 1);
  static constexpr int64_t kSharedBytes = (4 * kTile + 2 * kScores + 2 * kRows) * sizeof(C);

  AttentionWork work;
  int64_t num_query_tiles, num_key_tiles;
  AnyIn dout, lse;
  const C* delta;

  // Rows of q and dout, with their statistics.
  TACC_DEVICE void LoadQueries(const Team& team, int64_t b, int64_t head, const RowTile& tile, C* q_rows, C* dout_rows,
                               C* row_lse, C* row_delta) const {
    LoadTile<kRows, kD>(team, work.q, work.QueryOffset(b, tile.row, head), work.query_pitch, tile.n, work.d, q_rows);
    LoadTile<kRows, kD>(team, dout, work.OutOffset(b, tile.row, head), work.out_pitch, tile.n, work.value_d, dout_rows);
    for (int i = team.rank(); i < kRows; i += kTeam) {
      const int64_t at = work.StatisticsOffset(b, tile.row + i, head);
      const C value = i < tile.n ? lse.Load<C>(at) : C(0);
      row_lse[i] = value == -C(INFINITY) ? C(0) : value;  // Sees no key: all its scores are -inf.
      row_delta[i] = i < tile.n ? delta[at] : C(0);
    }
  }
  TACC_DEVICE void LoadKeys(const Team& team, int64_t b, int64_t kv, const RowTile& tile, C* k_rows, C* v_rows) const {
    LoadTile<kRows, kD>(team, work.k, work.KeyOffset(b, tile.row, kv), work.key_pitch, tile.n, work.d, k_rows);
    LoadTile<kRows, kD>(team, work.v, work.ValueOffset(b, tile.row, kv), work.value_pitch, tile.n, work.value_d,
                        v_rows);
  }
  // f(i, j, query, key, product, gradient) for a thread's own scores, rows of queries, columns of keys: q times k, and
  // the gradient of the score that is made of it.
  template <typename F>
  TACC_DEVICE void ForEachScore(int64_t b, int64_t head, const RowTile& queries, const RowTile& keys, int ty, int tx,
                                const C* q_rows, const C* dout_rows, const C* k_rows, const C* v_rows, const C* row_lse,
                                const C* row_delta, const F& f) const {
    const C slope = work.has_slopes ? static_cast<C>(work.slopes[head]) : C(0);
    C products[kOwn][kOwn], gradients[kOwn][kOwn];
    MultiplyRows<kRows, kD>(q_rows, k_rows, ty, tx, work.d, products);
    MultiplyRows<kRows, kD>(dout_rows, v_rows, ty, tx, work.value_d, gradients);
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int query = ty + kSide * i;
      const int64_t first = query < queries.n ? work.FirstKey(b, queries, query) : 0;
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const int key = tx + kSide * j;
        const C score = work.Score(products[i][j], slope, b, head, queries, query, first, keys, key);
        const C kept = static_cast<C>(work.Kept(b, head, queries, query, keys, key));
        f(i, j, query, key, products[i][j],
          std::exp(score - row_lse[query]) * (gradients[i][j] * kept - row_delta[query]));
      }
    }
  }
};

// Calls gradient.operator()<C, kD>(delta), with `delta` that FindAttentionDelta has found.
template <typename Gradient>
void WithDelta(const AttentionWork& work, const TensorView& q, const TensorView& dout, const TensorView& out,
               const Gradient& gradient) {
  Scratch scratch(q.dims.Product(0, 3) * (q.dtype == DType::kF64 ? 8 : 4));
  const auto run = [&]<typename C, int kD>() {
    C* delta = static_cast<C*>(scratch.data());
    FindAttentionDelta(work, dout, out, delta);
    gradient.template operator()<C, kD>(delta);
  };
  if (q.dtype == DType::kF64) return run.template operator()<double, 128>();
  const int32_t largest = std::max(work.d, work.value_d);
  if (largest <= 64) return run.template operator()<float, 64>();
  if (largest <= 128) return run.template operator()<float, 128>();
  run.template operator()<float, 256>();
}

}  // namespace tacc::kernels::cuda::tiles

#endif  // TACC_KERNELS_CUDA_ATTENTION_TILES_H_
