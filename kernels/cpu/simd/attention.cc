#include "kernels/cpu/simd/attention.h"

#include "kernels/cpu/simd/block.h"
#include "kernels/cpu/simd/gemm.h"
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

// Rows [first, first + n) of head h of a [B,S,H,D] tensor as dense rows of `stride` (>= D) elements, zero behind D.
template <typename C>
void LoadRows(const In& x, int64_t b, int64_t s, int64_t num_heads, int64_t h, int64_t d, int64_t first, int64_t n,
              int64_t stride, C* rows) {
  for (int64_t i = 0; i < n; ++i, rows += stride) {
    const int64_t offset = ((b * s + first + i) * num_heads + h) * d;
    if (x.dtype == Native<C>::kDType) {
      memcpy(rows, static_cast<const C*>(x.data) + offset, d * sizeof(C));
    } else {
      ConvertIn<C>(x.data, x.dtype, offset, d, rows);
    }
    for (int64_t j = d; j < stride; ++j) rows[j] = 0;
  }
}

template <typename C>
void StoreRows(const C* rows, int64_t stride, const Out& y, int64_t b, int64_t s, int64_t num_heads, int64_t h,
               int64_t d, int64_t first, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    ConvertOut<C>(rows + i * stride, y.data, y.dtype, ((b * s + first + i) * num_heads + h) * d, d);
  }
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

// One row of scores of query `i` against keys [key, key + n): scaled, biased, and -inf where the key may not be seen.
template <typename C>
TACC_INLINE void FinishScores(const AttentionHeads& heads, C slope, int64_t i, int64_t key, int64_t n, C* row) {
  const C scale = static_cast<C>(heads.scale);
  const int64_t visible = heads.causal ? Min(n, i + 1 - key) : n;
  if (slope == 0) {
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) row[j] *= scale;
  } else {
    const C distance = static_cast<C>(key - i);
#pragma omp simd
    for (int64_t j = 0; j < kKeys; ++j) {
      row[j] = row[j] * scale + slope * (distance + static_cast<C>(static_cast<int32_t>(j)));
    }
  }
  for (int64_t j = visible < 0 ? 0 : visible; j < kKeys; ++j) row[j] = -static_cast<C>(__builtin_inf());
}

template <typename C>
void Forward(const AttentionHeads& h, int64_t b, int64_t kv, int64_t first, int64_t limit, void* scratch) {
  const int64_t group = h.num_heads / h.num_kv_heads, d = h.d, stride = AttentionHeads::Padded(d);
  const int64_t num_key_blocks = (h.t + kKeys - 1) / kKeys;
  Cutter<C> cutter{static_cast<C*>(scratch)};
  C* k_columns = cutter.Cut(num_key_blocks * d * kKeys);
  C* v_rows = cutter.Cut(num_key_blocks * kKeys * stride);
  C* k_rows = cutter.Cut(kKeys * stride);
  C* q_rows = cutter.Cut(kQueries * stride);
  C* scores = cutter.Cut(kQueries * kKeys);
  C* out = cutter.Cut(kQueries * stride);
  Running<C> running;

  const int64_t seen = h.causal ? Min(h.t, Min(limit * kQueries, h.s)) : h.t;
  for (int64_t block = 0; block * kKeys < seen; ++block) {
    const int64_t key = block * kKeys, n = Min(kKeys, h.t - key);
    LoadRows<C>(h.k, b, h.t, h.num_kv_heads, kv, d, key, n, stride, k_rows);
    TransposeBlock<C>(k_rows, stride, n, d, k_columns + block * d * kKeys);
    LoadRows<C>(h.v, b, h.t, h.num_kv_heads, kv, d, key, n, stride, v_rows + key * stride);
    for (int64_t i = n * stride; i < kKeys * stride; ++i) v_rows[key * stride + i] = 0;
  }
  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    const C slope = h.slopes == nullptr ? C(0) : static_cast<C>(h.slopes[head]);
    for (int64_t query_block = first; query_block < limit; ++query_block) {
      const int64_t query = query_block * kQueries, m = Min(kQueries, h.s - query);
      LoadRows<C>(h.q, b, h.s, h.num_heads, head, d, query, m, stride, q_rows);
      for (int64_t i = 0; i < m; ++i) {
        running.maximum[i] = -static_cast<C>(__builtin_inf());
        running.sum[i] = 0;
      }
      for (int64_t i = 0; i < m * stride; ++i) out[i] = 0;
      const int64_t end = h.causal ? Min(h.t, query + m) : h.t;
      for (int64_t key = 0; key < end; key += kKeys) {
        const int64_t n = Min(kKeys, h.t - key);
        Multiply<C>({m, kKeys, d, q_rows, stride, 1, k_columns + key * d, kKeys, scores, kKeys, false});
        for (int64_t i = 0; i < m; ++i) {
          C* row = scores + i * kKeys;
          FinishScores<C>(h, slope, query + i, key, n, row);
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
            C* target = out + i * stride;
#pragma omp simd
            for (int64_t j = 0; j < stride; ++j) target[j] *= correction;
            running.maximum[i] = maximum;
          }
          running.sum[i] += sum;
        }
        Multiply<C>({m, stride, n, scores, kKeys, 1, v_rows + key * stride, stride, out, stride, true});
      }
      for (int64_t i = 0; i < m; ++i) {
        const C inverse = C(1) / running.sum[i];
        C* row = out + i * stride;
#pragma omp simd
        for (int64_t j = 0; j < stride; ++j) row[j] *= inverse;
        StoreOne<C>(h.out, (b * h.num_heads + head) * h.s + query + i, running.maximum[i] + Log(running.sum[i]));
      }
      StoreRows<C>(out, stride, h.y, b, h.s, h.num_heads, head, d, query, m);
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

template <typename C>
void Backward(const AttentionHeads& h, int64_t b, int64_t kv, void* scratch) {
  const int64_t group = h.num_heads / h.num_kv_heads, d = h.d, stride = AttentionHeads::Padded(d);
  const int64_t num_key_blocks = (h.t + kKeys - 1) / kKeys, keys = num_key_blocks * kKeys;
  Cutter<C> cutter{static_cast<C*>(scratch)};
  C* k_columns = cutter.Cut(d * keys);
  C* v_columns = cutter.Cut(d * keys);
  C* k_rows = cutter.Cut(keys * stride);
  C* dk = cutter.Cut(keys * stride);
  C* dv = cutter.Cut(keys * stride);
  C* q_rows = cutter.Cut(kQueries * stride);
  C* dout_rows = cutter.Cut(kQueries * stride);
  C* dq = cutter.Cut(kQueries * stride);
  C* p = cutter.Cut(kQueries * kKeys);
  C* dp = cutter.Cut(kQueries * kKeys);
  C lse[kQueries], delta[kQueries];

  for (int64_t block = 0; block < num_key_blocks; ++block) {
    const int64_t key = block * kKeys, n = Min(kKeys, h.t - key);
    LoadRows<C>(h.v, b, h.t, h.num_kv_heads, kv, d, key, n, stride, k_rows + key * stride);
    TransposeBlock<C>(k_rows + key * stride, stride, n, d, v_columns + key * d);
    LoadRows<C>(h.k, b, h.t, h.num_kv_heads, kv, d, key, n, stride, k_rows + key * stride);
    TransposeBlock<C>(k_rows + key * stride, stride, n, d, k_columns + key * d);
  }
  for (int64_t i = 0; i < keys * stride; ++i) dk[i] = dv[i] = 0;

  for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
    const C slope = h.slopes == nullptr ? C(0) : static_cast<C>(h.slopes[head]);
    const C scale = static_cast<C>(h.scale);
    for (int64_t query = 0; query < h.s; query += kQueries) {
      const int64_t m = Min(kQueries, h.s - query);
      LoadRows<C>(h.out_value, b, h.s, h.num_heads, head, d, query, m, stride, q_rows);
      LoadRows<C>(h.dout, b, h.s, h.num_heads, head, d, query, m, stride, dout_rows);
      RowDots<C>(q_rows, dout_rows, m, stride, delta);
      LoadRows<C>(h.q, b, h.s, h.num_heads, head, d, query, m, stride, q_rows);
      for (int64_t i = 0; i < m; ++i) lse[i] = LoadOne<C>(h.lse, (b * h.num_heads + head) * h.s + query + i);
      for (int64_t i = 0; i < m * stride; ++i) dq[i] = 0;
      const int64_t end = h.causal ? Min(h.t, query + m) : h.t;
      for (int64_t key = 0; key < end; key += kKeys) {
        const int64_t n = Min(kKeys, h.t - key);
        Multiply<C>({m, kKeys, d, q_rows, stride, 1, k_columns + key * d, kKeys, p, kKeys, false});
        Multiply<C>({m, kKeys, d, dout_rows, stride, 1, v_columns + key * d, kKeys, dp, kKeys, false});
        for (int64_t i = 0; i < m; ++i) {
          C* p_row = p + i * kKeys;
          C* dp_row = dp + i * kKeys;
          FinishScores<C>(h, slope, query + i, key, n, p_row);
          const C row_lse = lse[i], row_delta = delta[i];
#pragma omp simd
          for (int64_t j = 0; j < kKeys; ++j) {
            const C probability = Exp(p_row[j] - row_lse);
            p_row[j] = probability;
            dp_row[j] = probability * (dp_row[j] - row_delta) * scale;
          }
        }
        Multiply<C>({n, stride, m, p, 1, kKeys, dout_rows, stride, dv + key * stride, stride, true});
        Multiply<C>({n, stride, m, dp, 1, kKeys, q_rows, stride, dk + key * stride, stride, true});
        Multiply<C>({m, stride, n, dp, kKeys, 1, k_rows + key * stride, stride, dq, stride, true});
      }
      StoreRows<C>(dq, stride, h.y, b, h.s, h.num_heads, head, d, query, m);
    }
  }
  StoreRows<C>(dk, stride, h.dk, b, h.t, h.num_kv_heads, kv, d, 0, h.t);
  StoreRows<C>(dv, stride, h.dv, b, h.t, h.num_kv_heads, kv, d, 0, h.t);
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

}  // namespace tacc::kernels::simd::TACC_ISA
