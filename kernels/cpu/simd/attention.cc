#include "kernels/cpu/simd/attention.h"

#include "kernels/cpu/simd/block.h"
#include "kernels/cpu/simd/gemm.h"
#include "kernels/cpu/simd/pointwise.h"
#include "kernels/cpu/simd/vector_math.h"

namespace tacc::kernels::simd::TACC_ISA {
namespace {

constexpr int64_t kQueries = AttentionHeads::kQueryBlock;
constexpr int64_t kKeys = AttentionHeads::kKeyBlock;

// Scratch memory, cut off piece by piece.
template <typename C>
struct Cutter {
  C* next;
  C* Cut(int64_t n) {
    C* piece = next;
    next += n;
    return piece;
  }
};

// Rows of one head: where the first of them begins, and from one to the next, in elements.
struct RowsAt {
  int64_t offset, pitch;
};
// From row `first` of batch b on: of q and dq,
RowsAt QueryRows(const AttentionHeads& h, int64_t b, int64_t head, int64_t first) {
  return {(b * h.s + first) * h.query_pitch + head * h.d, h.query_pitch};
}
// of k and dk,
RowsAt KeyRows(const AttentionHeads& h, int64_t b, int64_t kv, int64_t first) {
  return {(b * h.t + first) * h.key_pitch + kv * h.d, h.key_pitch};
}
// of v and dv,
RowsAt ValueRows(const AttentionHeads& h, int64_t b, int64_t kv, int64_t first) {
  return {(b * h.t + first) * h.value_pitch + kv * h.value_d, h.value_pitch};
}
// and of what is dense [B,S,H,V].
RowsAt OutRows(const AttentionHeads& h, int64_t b, int64_t head, int64_t first) {
  return {((b * h.s + first) * h.num_heads + head) * h.value_d, h.num_heads * h.value_d};
}

// n rows of d elements as dense rows of `stride` (>= d) elements, zero behind d.
template <typename C>
void LoadRows(const In& x, RowsAt at, int64_t d, int64_t n, int64_t stride, C* rows) {
  for (int64_t i = 0; i < n; ++i, rows += stride) {
    const int64_t offset = at.offset + i * at.pitch;
    if (x.dtype == Native<C>::kDType) {
      memcpy(rows, static_cast<const C*>(x.data) + offset, d * sizeof(C));
    } else {
      ConvertIn<C>(x.data, x.dtype, offset, d, rows);
    }
    for (int64_t j = d; j < stride; ++j) rows[j] = 0;
  }
}

template <typename C>
void StoreRows(const C* rows, int64_t stride, const Out& y, RowsAt at, int64_t d, int64_t n) {
  for (int64_t i = 0; i < n; ++i) ConvertOut<C>(rows + i * stride, y.data, y.dtype, at.offset + i * at.pitch, d);
}

// columns [d, kKeys] = transpose of n rows [n, stride]; zero behind n.
template <typename C>
void TransposeBlock(const C* rows, int64_t stride, int64_t n, int64_t d, C* columns) {
  constexpr int64_t kTile = 16;
  for (int64_t j0 = 0; j0 < kKeys; j0 += kTile) {
    for (int64_t i = 0; i < d; ++i) {
      C* target = columns + i * kKeys + j0;
      for (int64_t j = 0; j < kTile; ++j) target[j] = j0 + j < n ? rows[(j0 + j) * stride + i] : C(0);
    }
  }
}

// What one block of queries has met so far.
template <typename C>
struct Running {
  C maximum[kQueries];
  C sum[kQueries];
};

// bias [kKeys] of a tile's keys, if they have one, with which it returns it; else null.
template <typename C>
const C* LoadKeyBias(const AttentionHeads& h, int64_t b, const AttentionTile& keys, C* bias) {
  if (h.key_bias == nullptr) return nullptr;
  const float* own = h.key_bias + b * h.t + keys.row;
  for (int64_t j = 0; j < kKeys; ++j) bias[j] = j < keys.n ? static_cast<C>(own[j]) : C(0);
  return bias;
}

// bias [kKeys] of the scores of a head's query, which lies in row `row`, and a tile's keys, with of_keys [kKeys] or
// null; null if they have none. -inf of either hides the key.
template <typename C>
const C* LoadBias(const AttentionHeads& h, int64_t b, int64_t head, int64_t row, const AttentionTile& keys,
                  const C* of_keys, C* bias) {
  if (h.bias.data == nullptr) return of_keys;
  const int64_t offset = b * h.bias_batch + head * h.bias_head + row * h.t + keys.row;
  ConvertIn<C>(h.bias.data, h.bias.dtype, offset, keys.n, bias);
  for (int64_t j = keys.n; j < kKeys; ++j) bias[j] = 0;
  const C hidden = -static_cast<C>(__builtin_inf());
  for (int64_t j = 0; j < kKeys && of_keys != nullptr; ++j)
    bias[j] = bias[j] == hidden || of_keys[j] == hidden ? hidden : bias[j] + of_keys[j];
  return bias;
}

// One row of scores of the query at position `i` against the n keys from position `key` on: scaled, capped, biased, and
// -inf where the key may not be seen. `first`: the first position that the query sees. bias [kKeys] of the keys, or
// null. derivatives [kKeys], where it is given and there is a cap: of the cap.
template <typename C>
TACC_INLINE void FinishScores(const AttentionHeads& heads, C slope, int64_t i, int64_t first, int64_t key, int64_t n,
                              const C* bias, C* row, C* derivatives = nullptr) {
  const C scale = static_cast<C>(heads.scale);
  const int64_t visible = heads.causal ? Min(n, i + 1 - key) : n;
  if (heads.softcap > 0) {
    const C cap = static_cast<C>(heads.softcap), inverse = static_cast<C>(heads.scale / heads.softcap);
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) row[j] = Tanh(row[j] * inverse);
    for (int64_t j = 0; j < kKeys && derivatives != nullptr; ++j) derivatives[j] = 1 - row[j] * row[j];
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) row[j] *= cap;
  } else {
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) row[j] *= scale;
  }
  if (slope != 0) {
    const C distance = static_cast<C>(key - i);
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) row[j] += slope * (distance + static_cast<C>(static_cast<int32_t>(j)));
  }
  if (bias != nullptr) {
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) row[j] = bias[j] == static_cast<C>(__builtin_inf()) ? C(0) : row[j] + bias[j];
  }
  for (int64_t j = visible < 0 ? 0 : visible; j < kKeys; ++j) row[j] = -static_cast<C>(__builtin_inf());
  for (int64_t j = 0, hidden = Min(first - key, kKeys); j < hidden; ++j) row[j] = -static_cast<C>(__builtin_inf());
}

// Drops of a row of n keys from position `key` on, and divides what is kept: row [n] of the query at position `i`.
template <typename C>
void DropRow(const AttentionHeads& h, int64_t b, int64_t head, int64_t i, int64_t key, int64_t n, C* row) {
  DropoutRun run = h.dropout;
  run.n = n;
  run.position = ((h.first_head + head) * h.logical_queries + i) * h.logical_keys + key;
  run.sample = h.samples[b];
  run.x = {row, Native<C>::kDType};
  run.y = {row, Native<C>::kDType};
  Dropout(run);
}

// What one tile of queries sees.
struct Sight {
  const AttentionHeads& heads;
  const int64_t batch;
  const AttentionTile& queries;
  int64_t first[kQueries];  // of each row
  int64_t lowest = 0;       // of all

  Sight(const AttentionHeads& h, int64_t b, const AttentionTile& tile) : heads(h), batch(b), queries(tile) {
    for (int64_t i = 0; i < tile.n; ++i) {
      first[i] = h.first_keys == nullptr ? 0 : h.first_keys[b * h.s + tile.row + i];
      const int64_t begin = tile.position + i + 1 - h.window;
      if (h.window > 0 && begin > first[i]) first[i] = begin;
      lowest = i == 0 ? first[0] : Min(lowest, first[i]);
    }
  }
  bool Any(const AttentionTile& keys) const {
    return keys.block == queries.block && keys.position + keys.n > lowest &&
           (!heads.causal || keys.position < queries.position + queries.n) && !AreHidden(keys);
  }
  bool AreHidden(const AttentionTile& keys) const {
    if (heads.key_bias == nullptr) return false;
    const float* bias = heads.key_bias + batch * heads.t + keys.row;
    int64_t hidden = 0;
    while (hidden < keys.n && bias[hidden] == -__builtin_inff()) ++hidden;
    return hidden == keys.n;
  }
};

template <typename C>
void Forward(const AttentionHeads& h, int64_t b, int64_t kv, int64_t first, int64_t limit, void* scratch) {
  const int64_t group = h.num_heads / h.num_kv_heads, d = h.d, stride = AttentionHeads::Padded(d);
  const int64_t value_d = h.value_d, value_stride = AttentionHeads::Padded(value_d);
  Cutter<C> cutter{static_cast<C*>(scratch)};
  C* k_columns = cutter.Cut(h.num_key_tiles * d * kKeys);
  C* v_rows = cutter.Cut(h.num_key_tiles * kKeys * value_stride);
  C* k_rows = cutter.Cut(kKeys * stride);
  C* q_rows = cutter.Cut(kQueries * stride);
  C* scores = cutter.Cut(kQueries * kKeys);
  C* out = cutter.Cut(kQueries * value_stride);
  Running<C> running;
  C bias_room[kKeys], row_bias_room[kKeys];

  for (int64_t tile = 0; tile < h.num_key_tiles; ++tile) {
    const AttentionTile& keys = h.key_tiles[tile];
    bool seen = false;
    for (int64_t i = first; i < limit && !seen; ++i) seen = Sight(h, b, h.query_tiles[i]).Any(keys);
    if (!seen) continue;
    LoadRows<C>(h.k, KeyRows(h, b, kv, keys.row), d, keys.n, stride, k_rows);
    TransposeBlock<C>(k_rows, stride, keys.n, d, k_columns + tile * d * kKeys);
    C* rows = v_rows + tile * kKeys * value_stride;
    LoadRows<C>(h.v, ValueRows(h, b, kv, keys.row), value_d, keys.n, value_stride, rows);
    for (int64_t i = keys.n * value_stride; i < kKeys * value_stride; ++i) rows[i] = 0;
  }
  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    const C slope = h.slopes == nullptr ? C(0) : static_cast<C>(h.slopes[head]);
    for (int64_t query_tile = first; query_tile < limit; ++query_tile) {
      const AttentionTile& queries = h.query_tiles[query_tile];
      const Sight sight(h, b, queries);
      const int64_t m = queries.n, lse_row = (b * h.num_heads + head) * h.s + queries.row;
      LoadRows<C>(h.q, QueryRows(h, b, head, queries.row), d, m, stride, q_rows);
      const C sink = h.sinks.data == nullptr ? -static_cast<C>(__builtin_inf()) : LoadOne<C>(h.sinks, head);
      for (int64_t i = 0; i < m; ++i) {
        running.maximum[i] = sink;
        running.sum[i] = sink == -static_cast<C>(__builtin_inf()) ? C(0) : C(1);
      }
      for (int64_t i = 0; i < m * value_stride; ++i) out[i] = 0;
      if (h.earlier_lse.data != nullptr) {
        LoadRows<C>(h.earlier_out, OutRows(h, b, head, queries.row), value_d, m, value_stride, out);
        for (int64_t i = 0; i < m; ++i) {
          running.maximum[i] = LoadOne<C>(h.earlier_lse, lse_row + i);
          running.sum[i] = running.maximum[i] == -static_cast<C>(__builtin_inf()) ? C(0) : C(1);
        }
      }
      for (int64_t tile = 0; tile < h.num_key_tiles; ++tile) {
        const AttentionTile& keys = h.key_tiles[tile];
        if (!sight.Any(keys)) continue;
        Multiply<C>({m, kKeys, d, q_rows, stride, 1, k_columns + tile * d * kKeys, kKeys, scores, kKeys, false});
        const C* of_keys = LoadKeyBias<C>(h, b, keys, bias_room);
        for (int64_t i = 0; i < m; ++i) {
          C* row = scores + i * kKeys;
          const C* bias = LoadBias<C>(h, b, head, queries.row + i, keys, of_keys, row_bias_room);
          FinishScores<C>(h, slope, queries.position + i, sight.first[i], keys.position, keys.n, bias, row);
          C maximum = running.maximum[i];
#pragma omp simd reduction(max : maximum)
          for (int64_t j = 0; j < kKeys; ++j) maximum = row[j] > maximum ? row[j] : maximum;
          // A row that has seen no key yet keeps zeros; NaN scores make NaN sums.
          const C shift = maximum == -static_cast<C>(__builtin_inf()) ? C(0) : maximum;
          C sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int64_t j = 0; j < kKeys; ++j) {
            row[j] = Exp(row[j] - shift);
            sum += row[j];
          }
          if (maximum > running.maximum[i]) {
            const C correction = Exp(running.maximum[i] - maximum);
            running.sum[i] *= correction;
            C* target = out + i * value_stride;
#pragma omp simd
            for (int64_t j = 0; j < value_stride; ++j) target[j] *= correction;
            running.maximum[i] = maximum;
          }
          running.sum[i] += sum;
          if (h.samples != nullptr) DropRow<C>(h, b, head, queries.position + i, keys.position, keys.n, row);
        }
        Multiply<C>({m, value_stride, keys.n, scores, kKeys, 1, v_rows + tile * kKeys * value_stride, value_stride, out,
                     value_stride, true});
      }
      for (int64_t i = 0; i < m; ++i) {
        // A query that sees no key at all gives 0.
        const C inverse = running.sum[i] == 0 ? C(0) : C(1) / running.sum[i];
        C* row = out + i * value_stride;
#pragma omp simd
        for (int64_t j = 0; j < value_stride; ++j) row[j] *= inverse;
        StoreOne<C>(h.out, lse_row + i, running.maximum[i] + (running.sum[i] == 0 ? C(0) : Log(running.sum[i])));
      }
      StoreRows<C>(out, value_stride, h.y, OutRows(h, b, head, queries.row), value_d, m);
    }
  }
}

// delta[i] = dout_i . out_i, the part of the softmax's derivative that all keys share.
template <typename C>
void RowDots(const C* a, const C* b, int64_t rows, int64_t stride, C* dots) {
  for (int64_t i = 0; i < rows; ++i) {
    C dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t j = 0; j < stride; ++j) dot += a[i * stride + j] * b[i * stride + j];
    dots[i] = dot;
  }
}

// A row's, and 0 where it sees no key: all its scores are -inf.
template <typename C>
C LoadLse(const AttentionHeads& h, int64_t row) {
  const C lse = LoadOne<C>(h.lse, row);
  return lse == -static_cast<C>(__builtin_inf()) ? C(0) : lse;
}

template <typename C>
void Backward(const AttentionHeads& h, int64_t b, int64_t kv, void* scratch) {
  const int64_t group = h.num_heads / h.num_kv_heads, d = h.d, stride = AttentionHeads::Padded(d);
  const int64_t value_d = h.value_d, value_stride = AttentionHeads::Padded(value_d);
  const int64_t keys_rows = h.num_key_tiles * kKeys;
  Cutter<C> cutter{static_cast<C*>(scratch)};
  C* k_columns = cutter.Cut(d * keys_rows);
  C* v_columns = cutter.Cut(value_d * keys_rows);
  C* k_rows = cutter.Cut(keys_rows * stride);
  C* dk = cutter.Cut(keys_rows * stride);
  C* dv = cutter.Cut(keys_rows * value_stride);
  C* q_rows = cutter.Cut(kQueries * (stride > value_stride ? stride : value_stride));  // before, those of the result
  C* dout_rows = cutter.Cut(kQueries * value_stride);
  C* dq = cutter.Cut(kQueries * stride);
  C* p = cutter.Cut(kQueries * kKeys);
  C* dp = cutter.Cut(kQueries * kKeys);
  C lse[kQueries], delta[kQueries], derivatives[kKeys], bias_room[kKeys], row_bias_room[kKeys];

  for (int64_t tile = 0; tile < h.num_key_tiles; ++tile) {
    const AttentionTile& keys = h.key_tiles[tile];
    C* v_rows = dv + tile * kKeys * value_stride;
    LoadRows<C>(h.v, ValueRows(h, b, kv, keys.row), value_d, keys.n, value_stride, v_rows);
    TransposeBlock<C>(v_rows, value_stride, keys.n, value_d, v_columns + tile * value_d * kKeys);
    C* rows = k_rows + tile * kKeys * stride;
    LoadRows<C>(h.k, KeyRows(h, b, kv, keys.row), d, keys.n, stride, rows);
    TransposeBlock<C>(rows, stride, keys.n, d, k_columns + tile * d * kKeys);
  }
  for (int64_t i = 0; i < keys_rows * stride; ++i) dk[i] = 0;
  for (int64_t i = 0; i < keys_rows * value_stride; ++i) dv[i] = 0;

  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    const C slope = h.slopes == nullptr ? C(0) : static_cast<C>(h.slopes[head]);
    const C scale = static_cast<C>(h.scale);
    for (int64_t query_tile = 0; query_tile < h.num_query_tiles; ++query_tile) {
      const AttentionTile& queries = h.query_tiles[query_tile];
      const Sight sight(h, b, queries);
      const int64_t m = queries.n;
      LoadRows<C>(h.out_value, OutRows(h, b, head, queries.row), value_d, m, value_stride, q_rows);
      LoadRows<C>(h.dout, OutRows(h, b, head, queries.row), value_d, m, value_stride, dout_rows);
      RowDots<C>(q_rows, dout_rows, m, value_stride, delta);
      LoadRows<C>(h.q, QueryRows(h, b, head, queries.row), d, m, stride, q_rows);
      for (int64_t i = 0; i < m; ++i) lse[i] = LoadLse<C>(h, (b * h.num_heads + head) * h.s + queries.row + i);
      for (int64_t i = 0; i < m * stride; ++i) dq[i] = 0;
      for (int64_t tile = 0; tile < h.num_key_tiles; ++tile) {
        const AttentionTile& keys = h.key_tiles[tile];
        if (!sight.Any(keys)) continue;
        const int64_t n = keys.n, key = tile * kKeys;
        Multiply<C>({m, kKeys, d, q_rows, stride, 1, k_columns + key * d, kKeys, p, kKeys, false});
        Multiply<C>(
            {m, kKeys, value_d, dout_rows, value_stride, 1, v_columns + key * value_d, kKeys, dp, kKeys, false});
        const C* of_keys = LoadKeyBias<C>(h, b, keys, bias_room);
        for (int64_t i = 0; i < m; ++i) {
          const C* bias = LoadBias<C>(h, b, head, queries.row + i, keys, of_keys, row_bias_room);
          C* p_row = p + i * kKeys;
          C* dp_row = dp + i * kKeys;
          const int64_t query = queries.position + i;
          FinishScores<C>(h, slope, query, sight.first[i], keys.position, n, bias, p_row, derivatives);
          if (h.samples != nullptr) DropRow<C>(h, b, head, query, keys.position, n, dp_row);
          const C row_lse = lse[i], row_delta = delta[i];
#pragma omp simd
          for (int64_t j = 0; j < kKeys; ++j) {
            const C probability = Exp(p_row[j] - row_lse);
            p_row[j] = probability;
            dp_row[j] = probability * (dp_row[j] - row_delta) * scale;
          }
          for (int64_t j = 0; j < kKeys && h.softcap > 0; ++j) dp_row[j] *= derivatives[j];
          if (h.samples != nullptr) DropRow<C>(h, b, head, query, keys.position, n, p_row);
        }
        Multiply<C>(
            {n, value_stride, m, p, 1, kKeys, dout_rows, value_stride, dv + key * value_stride, value_stride, true});
        Multiply<C>({n, stride, m, dp, 1, kKeys, q_rows, stride, dk + key * stride, stride, true});
        Multiply<C>({m, stride, n, dp, kKeys, 1, k_rows + key * stride, stride, dq, stride, true});
      }
      StoreRows<C>(dq, stride, h.y, QueryRows(h, b, head, queries.row), d, m);
    }
  }
  for (int64_t tile = 0; tile < h.num_key_tiles; ++tile) {
    const AttentionTile& keys = h.key_tiles[tile];
    StoreRows<C>(dk + tile * kKeys * stride, stride, h.dk, KeyRows(h, b, kv, keys.row), d, keys.n);
    StoreRows<C>(dv + tile * kKeys * value_stride, value_stride, h.dv, ValueRows(h, b, kv, keys.row), value_d, keys.n);
  }
}

// A tile of keys after the other, so that each sum stays in cache.
template <typename C>
void BiasBackward(const AttentionHeads& h, int64_t entry_b, int64_t entry_head, int64_t part, int64_t parts,
                  int64_t query_tile, void* scratch) {
  const int64_t group = h.num_heads / h.num_kv_heads, d = h.d, stride = AttentionHeads::Padded(d);
  const int64_t value_d = h.value_d, value_stride = AttentionHeads::Padded(value_d);
  Cutter<C> cutter{static_cast<C*>(scratch)};
  C* k_rows = cutter.Cut(kKeys * stride);
  C* v_rows = cutter.Cut(kKeys * value_stride);
  C* k_columns = cutter.Cut(kKeys * d);
  C* v_columns = cutter.Cut(kKeys * value_d);
  C* q_rows = cutter.Cut(kQueries * stride);
  C* out_rows = cutter.Cut(kQueries * value_stride);
  C* dout_rows = cutter.Cut(kQueries * value_stride);
  C* p = cutter.Cut(kQueries * kKeys);
  C* dp = cutter.Cut(kQueries * kKeys);
  C* sum = cutter.Cut(kQueries * kKeys);
  C delta[kQueries], bias_room[kKeys], row_bias_room[kKeys];
  const AttentionTile& queries = h.query_tiles[query_tile];
  const int64_t m = queries.n;
  const int64_t first_b = h.bias_batch == 0 ? h.num_batches * part / parts : entry_b;
  const int64_t limit_b = h.bias_batch == 0 ? h.num_batches * (part + 1) / parts : entry_b + 1;
  const int64_t first_head = h.bias_head == 0 ? 0 : entry_head;
  const int64_t limit_head = h.bias_head == 0 ? h.num_heads : entry_head + 1;

  for (int64_t tile = 0; tile < h.num_key_tiles; ++tile) {
    const AttentionTile& keys = h.key_tiles[tile];
    for (int64_t i = 0; i < m * kKeys; ++i) sum[i] = 0;
    for (int64_t b = first_b; b < limit_b; ++b) {
      const Sight sight(h, b, queries);
      if (!sight.Any(keys)) continue;
      const C* of_keys = LoadKeyBias<C>(h, b, keys, bias_room);
      for (int64_t head = first_head; head < limit_head; ++head) {
        const int64_t kv = head / group;
        if (head == first_head || head % group == 0) {
          LoadRows<C>(h.k, KeyRows(h, b, kv, keys.row), d, keys.n, stride, k_rows);
          TransposeBlock<C>(k_rows, stride, keys.n, d, k_columns);
          LoadRows<C>(h.v, ValueRows(h, b, kv, keys.row), value_d, keys.n, value_stride, v_rows);
          TransposeBlock<C>(v_rows, value_stride, keys.n, value_d, v_columns);
        }
        LoadRows<C>(h.q, QueryRows(h, b, head, queries.row), d, m, stride, q_rows);
        LoadRows<C>(h.out_value, OutRows(h, b, head, queries.row), value_d, m, value_stride, out_rows);
        LoadRows<C>(h.dout, OutRows(h, b, head, queries.row), value_d, m, value_stride, dout_rows);
        RowDots<C>(out_rows, dout_rows, m, value_stride, delta);
        Multiply<C>({m, kKeys, d, q_rows, stride, 1, k_columns, kKeys, p, kKeys, false});
        Multiply<C>({m, kKeys, value_d, dout_rows, value_stride, 1, v_columns, kKeys, dp, kKeys, false});
        const C slope = h.slopes == nullptr ? C(0) : static_cast<C>(h.slopes[head]);
        for (int64_t i = 0; i < m; ++i) {
          C* p_row = p + i * kKeys;
          C* dp_row = dp + i * kKeys;
          C* sum_row = sum + i * kKeys;
          const int64_t query = queries.position + i;
          const C* bias = LoadBias<C>(h, b, head, queries.row + i, keys, of_keys, row_bias_room);
          FinishScores<C>(h, slope, query, sight.first[i], keys.position, keys.n, bias, p_row);
          if (h.samples != nullptr) DropRow<C>(h, b, head, query, keys.position, keys.n, dp_row);
          const C row_lse = LoadLse<C>(h, (b * h.num_heads + head) * h.s + queries.row + i), row_delta = delta[i];
          if (h.bias_yields) {
            for (int64_t j = 0; j < kKeys; ++j)
              if (bias[j] == static_cast<C>(__builtin_inf())) dp_row[j] = row_delta;
          }
#pragma omp simd
          for (int64_t j = 0; j < kKeys; ++j) sum_row[j] += Exp(p_row[j] - row_lse) * (dp_row[j] - row_delta);
        }
      }
    }
    const int64_t whole = (h.bias_head == 0 ? 1 : h.num_heads) * h.s * h.t;  // of a sample's
    const int64_t first = (entry_b + part) * whole + entry_head * h.bias_head + queries.row * h.t + keys.row;
    for (int64_t i = 0; i < m; ++i)
      ConvertOut<C>(sum + i * kKeys, h.dbias.data, h.dbias.dtype, first + i * h.t, keys.n);
  }
}

}  // namespace

void AttentionForward(const AttentionHeads& heads, int64_t b, int64_t kv, int64_t first, int64_t limit, void* scratch) {
  if (IsF64(heads.q)) return Forward<double>(heads, b, kv, first, limit, scratch);
  Forward<float>(heads, b, kv, first, limit, scratch);
}

void AttentionBackward(const AttentionHeads& heads, int64_t b, int64_t kv, void* scratch) {
  if (IsF64(heads.q)) return Backward<double>(heads, b, kv, scratch);
  Backward<float>(heads, b, kv, scratch);
}

void AttentionBiasBackward(const AttentionHeads& heads, int64_t b, int64_t head, int64_t part, int64_t parts,
                           int64_t query_tile, void* scratch) {
  if (IsF64(heads.q)) return BiasBackward<double>(heads, b, head, part, parts, query_tile, scratch);
  BiasBackward<float>(heads, b, head, part, parts, query_tile, scratch);
}

}  // namespace tacc::kernels::simd::TACC_ISA
