// Flash attention in tiles of shared memory (attention_tiles.h). Source: Dao et al., "FlashAttention", NeurIPS 2022,
// algorithms 1 and 4; Dao, "FlashAttention-2", 2023, section 3.1, for the order of the loops.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/contract/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"

namespace tacc::kernels::cuda {
namespace {

using namespace tiles;

// Rows of a tile, so that the tiles of a team fit into kMaxSharedBytes.
template <typename C, int kD>
constexpr int kForwardRows =
    16384 / (kD * static_cast<int>(sizeof(C))) < 32 ? 16384 / (kD * static_cast<int>(sizeof(C))) : 32;

// The inverse of LoadTile for the n rows that exist: a thread's own numbers to its place in shared memory,
template <int kRows, int kD, typename C>
TACC_DEVICE void KeepOwn(const C (&own)[kRows / kSide][kD / kSide], int ty, int tx, C* rows) {
  TACC_UNROLL
  for (int i = 0; i < kRows / kSide; ++i) {
    TACC_UNROLL
    for (int c = 0; c < kD / kSide; ++c) rows[(ty + kSide * i) * (kD + 1) + tx + kSide * c] = own[i][c];
  }
}

// and from there to the tensor.
template <int kRows, int kD, typename C>
TACC_DEVICE void StoreTile(const Team& team, const C* rows, const AnyOut& y, int64_t offset, int64_t stride, int n,
                           int d) {
  TACC_DO_NOT_UNROLL
  for (int i = team.rank(); i < kRows * kD; i += kTeam) {
    const int row = i / kD, column = i % kD;
    if (row < n && column < d) y.Store(offset + row * stride + column, rows[row * (kD + 1) + column]);
  }
}

// sums[i][c] += weights' row ty + 8 i times column tx + 8 c of the first n rows.
template <int kRows, int kD, typename C>
TACC_DEVICE void AddProducts(const C* weights, const C* rows, int n, int ty, int tx,
                             C (&sums)[kRows / kSide][kD / kSide]) {
  constexpr int kOwn = kRows / kSide, kColumns = kD / kSide;
  TACC_DO_NOT_UNROLL
  for (int j = 0; j < n; ++j) {
    C left[kOwn];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) left[i] = weights[(ty + kSide * i) * (kRows + 1) + j];
    TACC_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const C right = rows[j * (kD + 1) + tx + kSide * c];
      TACC_UNROLL
      for (int i = 0; i < kOwn; ++i) sums[i][c] += left[i] * right;
    }
  }
}

// Queries in tiles; index = (tile from the last, batch, head): under a causal mask the longest first.
template <typename C, int kD>
struct AttentionQueries {
  static constexpr int kRows = kForwardRows<C, kD>;
  static constexpr int kOwn = kRows / kSide, kColumns = kD / kSide;
  static constexpr int64_t kSharedBytes = (2 * kRows * (kD + 1) + kRows * (kRows + 1)) * sizeof(C);

  AttentionWork work;
  int64_t num_query_tiles, num_key_tiles;
  AnyIn earlier_out, earlier_lse, sinks;
  AnyOut out, lse;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = work;
    const int64_t pairs = static_cast<int64_t>(w.num_batches) * w.num_heads;
    const int64_t b = index % pairs / w.num_heads, head = index % w.num_heads;
    const int64_t kv = head / (w.num_heads / w.num_kv_heads);
    const RowTile queries = TileAt<kRows>(w.queries, num_query_tiles - 1 - index / pairs);
    const int64_t lowest = w.LowestKey(b, queries);
    const C slope = w.has_slopes ? static_cast<C>(w.slopes[head]) : C(0);
    const int ty = team.rank() / kSide, tx = team.rank() % kSide;

    C* q_rows = team.shared<C>();
    C* kv_rows = q_rows + kRows * (kD + 1);
    C* scores = kv_rows + kRows * (kD + 1);
    LoadTile<kRows, kD>(team, w.q, w.QueryOffset(b, queries.row, head), w.query_pitch, queries.n, w.d, q_rows);
    // Results over earlier keys, or zeros.
    LoadTile<kRows, kD>(team, earlier_out, w.OutOffset(b, queries.row, head), w.out_pitch, earlier_lse ? queries.n : 0,
                        w.value_d, kv_rows);
    team.Sync();
    C sums[kOwn][kColumns], maximum[kOwn], total[kOwn];
    int64_t first[kOwn];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int row = ty + kSide * i;
      const bool exists = row < queries.n;
      first[i] = exists ? w.FirstKey(b, queries, row) : 0;
      maximum[i] = sinks ? sinks.Load<C>(head) : -C(INFINITY);
      if (earlier_lse && exists) maximum[i] = earlier_lse.Load<C>(w.StatisticsOffset(b, queries.row + row, head));
      total[i] = maximum[i] == -C(INFINITY) ? C(0) : C(1);
      TACC_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[i][c] = kv_rows[row * (kD + 1) + tx + kSide * c];
    }
    team.Sync();
    for (int64_t tile = 0; tile < num_key_tiles; ++tile) {
      const RowTile keys = TileAt<kRows>(w.keys, tile);
      if (!w.Meet(b, queries, lowest, keys)) continue;  // The same for the whole team.
      LoadTile<kRows, kD>(team, w.k, w.KeyOffset(b, keys.row, kv), w.key_pitch, keys.n, w.d, kv_rows);
      team.Sync();
      C own[kOwn][kOwn];
      MultiplyRows<kRows, kD>(q_rows, kv_rows, ty, tx, w.d, own);
      TACC_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        TACC_UNROLL
        for (int j = 0; j < kOwn; ++j) {
          own[i][j] = w.Score(own[i][j], slope, b, head, queries, ty + kSide * i, first[i], keys, tx + kSide * j);
          scores[(ty + kSide * i) * (kRows + 1) + tx + kSide * j] = own[i][j];
        }
      }
      team.Sync();
      LoadTile<kRows, kD>(team, w.v, w.ValueOffset(b, keys.row, kv), w.value_pitch, keys.n, w.value_d, kv_rows);
      C correction[kOwn], shift[kOwn];
      TACC_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        C highest = maximum[i];
        TACC_DO_NOT_UNROLL
        for (int j = 0; j < kRows; ++j) {
          const C score = scores[(ty + kSide * i) * (kRows + 1) + j];
          highest = score > highest ? score : highest;
        }
        // A row that has seen no key yet keeps zeros; NaN scores make NaN sums.
        shift[i] = highest == -C(INFINITY) ? C(0) : highest;
        correction[i] = highest > maximum[i] ? std::exp(maximum[i] - highest) : C(1);
        maximum[i] = highest;
      }
      team.Sync();
      TACC_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        TACC_UNROLL
        for (int j = 0; j < kOwn; ++j)
          scores[(ty + kSide * i) * (kRows + 1) + tx + kSide * j] = std::exp(own[i][j] - shift[i]);
      }
      team.Sync();
      TACC_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        C sum = 0;
        TACC_DO_NOT_UNROLL
        for (int j = 0; j < kRows; ++j) sum += scores[(ty + kSide * i) * (kRows + 1) + j];
        total[i] = total[i] * correction[i] + sum;
        TACC_UNROLL
        for (int c = 0; c < kColumns; ++c) sums[i][c] *= correction[i];
      }
      if (w.dropout.sample != nullptr) {
        team.Sync();
        TACC_DO_NOT_UNROLL
        for (int i = 0; i < kOwn; ++i) {
          TACC_DO_NOT_UNROLL
          for (int j = 0; j < kOwn; ++j) {
            const int query = ty + kSide * i, key = tx + kSide * j;
            scores[query * (kRows + 1) + key] *= static_cast<C>(w.Kept(b, head, queries, query, keys, key));
          }
        }
        team.Sync();
      }
      AddProducts<kRows, kD>(scores, kv_rows, keys.n, ty, tx, sums);
      team.Sync();
    }
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int row = ty + kSide * i;
      // A query that sees no key at all gives 0.
      const C inverse = total[i] == 0 ? C(0) : C(1) / total[i];
      TACC_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[i][c] *= inverse;
      if (tx == 0 && row < queries.n) {
        lse.Store(w.StatisticsOffset(b, queries.row + row, head),
                  maximum[i] + (total[i] == 0 ? C(0) : std::log(total[i])));
      }
    }
    KeepOwn<kRows, kD>(sums, ty, tx, kv_rows);
    team.Sync();
    StoreTile<kRows, kD>(team, kv_rows, out, w.OutOffset(b, queries.row, head), w.out_pitch, queries.n, w.value_d);
  }
};

// dk and dv, keys in tiles; index = (tile, batch, key/value head).
template <typename C, int kD>
struct AttentionGradKeys : AttentionGradWork<C, kD> {
  using Base = AttentionGradWork<C, kD>;
  static constexpr int kRows = Base::kRows, kOwn = Base::kOwn, kColumns = Base::kColumns;

  AnyOut dk, dv;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = this->work;
    const int64_t pairs = static_cast<int64_t>(w.num_batches) * w.num_kv_heads;
    const int64_t b = index % pairs / w.num_kv_heads, kv = index % w.num_kv_heads;
    const int group = w.num_heads / w.num_kv_heads;
    const RowTile keys = TileAt<kRows>(w.keys, index / pairs);
    const int ty = team.rank() / kSide, tx = team.rank() % kSide;
    C* k_rows = team.shared<C>();
    C* v_rows = k_rows + Base::kTile;
    C* q_rows = v_rows + Base::kTile;
    C* dout_rows = q_rows + Base::kTile;
    C* weights = dout_rows + Base::kTile;
    C* gradients = weights + Base::kScores;
    C* row_lse = gradients + Base::kScores;
    C* row_delta = row_lse + kRows;
    this->LoadKeys(team, b, kv, keys, k_rows, v_rows);
    C dk_sums[kOwn][kColumns], dv_sums[kOwn][kColumns];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      TACC_UNROLL
      for (int c = 0; c < kColumns; ++c) dk_sums[i][c] = dv_sums[i][c] = 0;
    }
    for (int64_t tile = 0; tile < this->num_query_tiles; ++tile) {
      const RowTile queries = TileAt<kRows>(w.queries, tile);
      if (!w.Meet(b, queries, w.LowestKey(b, queries), keys)) continue;  // The same for the whole team.
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        const C slope = w.has_slopes ? static_cast<C>(w.slopes[head]) : C(0);
        this->LoadQueries(team, b, head, queries, q_rows, dout_rows, row_lse, row_delta);
        team.Sync();
        // Rows are keys here, columns queries.
        C own[kOwn][kOwn], own_gradients[kOwn][kOwn];
        MultiplyRows<kRows, kD>(k_rows, q_rows, ty, tx, w.d, own);
        MultiplyRows<kRows, kD>(v_rows, dout_rows, ty, tx, w.value_d, own_gradients);
        TACC_UNROLL
        for (int j = 0; j < kOwn; ++j) {
          const int query = tx + kSide * j;
          const int64_t first = query < queries.n ? w.FirstKey(b, queries, query) : 0;
          TACC_UNROLL
          for (int i = 0; i < kOwn; ++i) {
            const int key = ty + kSide * i, at = key * (kRows + 1) + query;
            const C weight =
                std::exp(w.Score(own[i][j], slope, b, head, queries, query, first, keys, key) - row_lse[query]);
            const C kept = static_cast<C>(w.Kept(b, head, queries, query, keys, key));
            weights[at] = weight * kept;
            gradients[at] = weight * (own_gradients[i][j] * kept - row_delta[query]) * w.Derivative(own[i][j]);
          }
        }
        team.Sync();
        AddProducts<kRows, kD>(weights, dout_rows, queries.n, ty, tx, dv_sums);
        AddProducts<kRows, kD>(gradients, q_rows, queries.n, ty, tx, dk_sums);
        team.Sync();
      }
    }
    team.Sync();  // The loads of k and v are over, should no query have met them.
    KeepOwn<kRows, kD>(dk_sums, ty, tx, k_rows);
    KeepOwn<kRows, kD>(dv_sums, ty, tx, v_rows);
    team.Sync();
    StoreTile<kRows, kD>(team, k_rows, dk, w.KeyOffset(b, keys.row, kv), w.key_pitch, keys.n, w.d);
    StoreTile<kRows, kD>(team, v_rows, dv, w.ValueOffset(b, keys.row, kv), w.value_pitch, keys.n, w.value_d);
  }
};

// dq, queries in tiles; index as in AttentionQueries.
template <typename C, int kD>
struct AttentionGradQueries : AttentionGradWork<C, kD> {
  using Base = AttentionGradWork<C, kD>;
  static constexpr int kRows = Base::kRows, kOwn = Base::kOwn, kColumns = Base::kColumns;

  AnyOut dq;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = this->work;
    const int64_t pairs = static_cast<int64_t>(w.num_batches) * w.num_heads;
    const int64_t b = index % pairs / w.num_heads, head = index % w.num_heads;
    const int64_t kv = head / (w.num_heads / w.num_kv_heads);
    const RowTile queries = TileAt<kRows>(w.queries, this->num_query_tiles - 1 - index / pairs);
    const int64_t lowest = w.LowestKey(b, queries);
    const int ty = team.rank() / kSide, tx = team.rank() % kSide;
    C* q_rows = team.shared<C>();
    C* dout_rows = q_rows + Base::kTile;
    C* k_rows = dout_rows + Base::kTile;
    C* v_rows = k_rows + Base::kTile;
    C* gradients = v_rows + Base::kTile;
    C* row_lse = gradients + Base::kScores;
    C* row_delta = row_lse + kRows;
    this->LoadQueries(team, b, head, queries, q_rows, dout_rows, row_lse, row_delta);
    C sums[kOwn][kColumns];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      TACC_UNROLL
      for (int c = 0; c < kColumns; ++c) sums[i][c] = 0;
    }
    for (int64_t tile = 0; tile < this->num_key_tiles; ++tile) {
      const RowTile keys = TileAt<kRows>(w.keys, tile);
      if (!w.Meet(b, queries, lowest, keys)) continue;  // The same for the whole team.
      this->LoadKeys(team, b, kv, keys, k_rows, v_rows);
      team.Sync();
      this->ForEachScore(b, head, queries, keys, ty, tx, q_rows, dout_rows, k_rows, v_rows, row_lse, row_delta,
                         [&](int, int, int query, int key, C product, C gradient) {
                           gradients[query * (kRows + 1) + key] = gradient * w.Derivative(product);
                         });
      team.Sync();
      AddProducts<kRows, kD>(gradients, k_rows, keys.n, ty, tx, sums);
      team.Sync();
    }
    team.Sync();  // The loads of q and dout are over, should no key have met them.
    KeepOwn<kRows, kD>(sums, ty, tx, q_rows);
    team.Sync();
    StoreTile<kRows, kD>(team, q_rows, dq, w.QueryOffset(b, queries.row, head), w.query_pitch, queries.n, w.d);
  }
};

RunsOfRows RunsOf(const std::vector<SequenceRun>& given, int64_t rows) {
  constexpr int64_t kLimit = int64_t{1} << 31;
  RunsOfRows runs{};
  const std::vector<SequenceRun> whole = {{.length = rows}};
  int64_t sum = 0;
  for (const SequenceRun& run : given.empty() ? whole : given) {
    TACC_KERNEL_CHECK(run.position >= 0 && run.length >= 0 && run.position + run.length < kLimit);
    runs.runs[runs.num_runs++] = {static_cast<int32_t>(run.length), static_cast<int32_t>(run.position),
                                  static_cast<int32_t>(run.block)};
    sum += run.length;
  }
  TACC_KERNEL_CHECK(sum <= rows);
  return runs;
}

WorkDropout DropoutIn(const AttentionDropout& dropout, int64_t batch) {
  if (dropout.parameters.rate == 0) return {};
  TACC_KERNEL_CHECK(dropout.step.size() == 1 && dropout.step.dtype == DType::kI64);
  TACC_KERNEL_CHECK(dropout.sample.size() == batch && dropout.sample.dtype == DType::kI64);
  return {dropout.step.as<int64_t>(), dropout.sample.as<int64_t>(),
          KeysOf(dropout.parameters), 1 / (1 - dropout.parameters.rate),
          dropout.first_head,         dropout.logical_queries,
          dropout.logical_keys};
}

template <typename C, int kD>
void Forward(const AttentionWork& work, const AttentionExtras& extras, const TensorView& out, const TensorView& lse) {
  using Kernel = AttentionQueries<C, kD>;
  static_assert(sizeof(Kernel) <= 4000 && Kernel::kSharedBytes <= kMaxSharedBytes && Kernel::kRows % kSide == 0);
  const int64_t query_tiles = NumTiles<Kernel::kRows>(work.queries), key_tiles = NumTiles<Kernel::kRows>(work.keys);
  ForEachTeam<kTeam>(query_tiles * work.num_batches * work.num_heads, kTeam, Kernel::kSharedBytes,
                     Kernel{work, query_tiles, key_tiles, In(extras.earlier_out), In(extras.earlier_lse),
                            In(extras.sinks), Out(out), Out(lse)});
}

template <typename C, int kD>
void Backward(const AttentionWork& work, const TensorView& dout, const TensorView& lse, const C* delta,
              const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  using Keys = AttentionGradKeys<C, kD>;
  using Queries = AttentionGradQueries<C, kD>;
  static_assert(sizeof(Keys) <= 4000 && Keys::kSharedBytes <= kMaxSharedBytes && Keys::kRows % kSide == 0);
  const int64_t query_tiles = NumTiles<Keys::kRows>(work.queries), key_tiles = NumTiles<Keys::kRows>(work.keys);
  const AttentionGradWork<C, kD> shared{work, query_tiles, key_tiles, In(dout), In(lse), delta};
  ForEachTeam<kTeam>(key_tiles * work.num_batches * work.num_kv_heads, kTeam, Keys::kSharedBytes,
                     Keys{{shared}, Out(dk), Out(dv)});
  ForEachTeam<kTeam>(query_tiles * work.num_batches * work.num_heads, kTeam, Queries::kSharedBytes,
                     Queries{{shared}, Out(dq)});
}

void Attention(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
               const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) {
  if (q.size() == 0) return;
  const AttentionWork work = WorkOf(q, k, v, extras.first_keys, parameters);
  TACC_KERNEL_CHECK(out.dims == AttentionResultDims(q, v) && lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  TACC_KERNEL_CHECK(extras.earlier_lse.data == nullptr ||
                    (extras.earlier_out.dims == out.dims && extras.earlier_lse.size() == lse.size()));
  TACC_KERNEL_CHECK(extras.sinks.data == nullptr ||
                    (extras.sinks.size() == q.dims[2] && extras.earlier_lse.data == nullptr));
  if (q.dtype == DType::kF64) return Forward<double, 128>(work, extras, out, lse);
  const int32_t largest = std::max(work.d, work.value_d);
  if (largest <= 64) return Forward<float, 64>(work, extras, out, lse);
  if (largest <= 128) return Forward<float, 128>(work, extras, out, lse);
  Forward<float, 256>(work, extras, out, lse);
}

void AttentionGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                   const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                   const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
                   const TensorView& dv) {
  const AttentionWork work = WorkOf(q, k, v, first_keys, parameters);
  TACC_KERNEL_CHECK(dout.dims == AttentionResultDims(q, v) && out.dims == dout.dims && dq.dims == q.dims &&
                    dk.dims == k.dims && dv.dims == v.dims && lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  WithDelta(work, q, dout, out,
            [&]<typename C, int kD>(const C* delta) { Backward<C, kD>(work, dout, lse, delta, dq, dk, dv); });
}

}  // namespace

AttentionWork WorkOf(const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& first_keys,
                     const AttentionParameters& p) {
  TACC_KERNEL_CHECK(q.dims.rank() == 4 && k.dims.rank() == 4 && v.dims.rank() == 4);
  TACC_KERNEL_CHECK(k.dims.Product(0, 3) == v.dims.Product(0, 3) && k.dims[1] == v.dims[1] && k.dims[2] == v.dims[2]);
  TACC_KERNEL_CHECK(k.dims[0] == q.dims[0] && k.dims[3] == q.dims[3]);
  TACC_KERNEL_CHECK(k.dims[2] > 0 && q.dims[2] % k.dims[2] == 0 && q.dtype == k.dtype && q.dtype == v.dtype);
  const int64_t q_row = q.dims[2] * q.dims[3], k_row = k.dims[2] * k.dims[3], v_row = v.dims[2] * v.dims[3];
  const int64_t out_row = q.dims[2] * v.dims[3];
  TACC_KERNEL_CHECK(p.pitch == 0 || (p.pitch >= q_row + 2 * k_row && q.dims[1] == k.dims[1] && v_row == k_row));
  TACC_KERNEL_CHECK(std::max({q_row, k_row, v_row, out_row, p.pitch}) <= INT32_MAX);
  TACC_KERNEL_CHECK(AttentionLimit(q, v, p).empty());
  TACC_KERNEL_CHECK(p.alibi_slopes.empty() || static_cast<int64_t>(p.alibi_slopes.size()) == q.dims[2]);
  TACC_KERNEL_CHECK(first_keys.data == nullptr ||
                    (first_keys.dtype == DType::kI32 && first_keys.size() == q.dims[0] * q.dims[1]));
  TACC_KERNEL_CHECK(p.key_bias.data == nullptr ||
                    (p.key_bias.dtype == DType::kF32 && p.key_bias.size() == k.dims[0] * k.dims[1]));
  TACC_KERNEL_CHECK(FitsBias(p.bias, q, k));
  const BiasStrides bias = StridesOfBias(p.bias);
  AttentionWork work{In(q),
                     In(k),
                     In(v),
                     first_keys.as<int32_t>(),
                     p.key_bias.as<float>(),
                     In(p.bias),
                     p.bias_yields,
                     bias.batch,
                     bias.head,
                     p.scale,
                     q.dims[1],
                     k.dims[1],
                     static_cast<int32_t>(q.dims[0]),
                     static_cast<int32_t>(q.dims[2]),
                     static_cast<int32_t>(k.dims[2]),
                     static_cast<int32_t>(q.dims[3]),
                     static_cast<int32_t>(v.dims[3]),
                     static_cast<int32_t>(p.pitch > 0 ? p.pitch : q_row),
                     static_cast<int32_t>(p.pitch > 0 ? p.pitch : k_row),
                     static_cast<int32_t>(p.pitch > 0 ? p.pitch : v_row),
                     static_cast<int32_t>(out_row),
                     p.causal ? 1 : 0,
                     p.alibi_slopes.empty() ? 0 : 1,
                     static_cast<int32_t>(std::min<int64_t>(p.window, INT32_MAX)),
                     p.softcap,
                     DropoutIn(p.dropout, q.dims[0]),
                     RunsOf(p.queries, q.dims[1]),
                     RunsOf(p.keys, k.dims[1]),
                     {}};
  for (size_t i = 0; i < p.alibi_slopes.size(); ++i) work.slopes[i] = p.alibi_slopes[i];
  return work;
}

const AttentionKernels kAttention = {
    .Attention = Attention,
    .AttentionGrad = AttentionGrad,
    .AttentionBiasGrad = AttentionBiasGrad,
};

}  // namespace tacc::kernels::cuda
