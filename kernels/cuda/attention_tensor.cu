// Flash attention on tensor cores (attention_tensor_tiles.h). Sources: as kernels/cuda/attention.cu.
#include <cmath>
#include <string>

#include "kernels/contract/attention.h"
#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/attention_tensor_tiles.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/launch/tensor_core.h"
#include "kernels/cuda/scratch.h"

namespace tacc::kernels::cuda {
namespace {

using namespace tensor_tiles;

// sums += weights [kMma, kRows] times `rows` [kRows, kD].
template <typename E>
TACC_DEVICE void AddProducts(const Team& team, int d, const E* weights, const E* rows, SumTile (&sums)[kD / kMma]) {
  constexpr int kPitch = kD + kPack;
  TACC_UNROLL
  for (int k = 0; k < kRows; k += kMma) {
    LeftTile<E, Major::kRow> l;
    l.Load(weights + k, kWeightPitch);
    TACC_UNROLL
    for (int c = 0; c < kD / kMma; ++c) {
      if (c * kMma >= d) break;
      RightTile<E, Major::kRow> r;
      r.Load(rows + k * kPitch + c * kMma, kPitch);
      sums[c].Add(team, l, r);
    }
  }
}

// To weights [kMma, kRows], which lie where scores lay.
template <typename E>
TACC_DEVICE void StoreOwn(const float (&own)[kOwn], const Place& place, E* weights) {
  TACC_UNROLL
  for (int j = 0; j < kOwn; j += kPack)
    StorePacked<kPack, E>(weights, place.row * kWeightPitch + place.column + j, own + j);
}

// y's row at `offset`, if the row exists, = a thread's row of sums times `factor`; all threads, each its columns.
TACC_DEVICE void StoreSums(const Team& team, const SumTile (&sums)[kD / kMma], float* scores, const Place& place,
                           bool exists, float factor, const AnyOut& y, int64_t offset, int d) {
  TACC_UNROLL
  for (int c = 0; c < kD / kMma; c += 2) {
    if (c * kMma >= d) break;
    StoreScores(team, sums[c], sums[c + 1], scores);
    team.Sync();
    float own[kOwn];
    LoadOwn(scores, place, own);
    TACC_UNROLL
    for (int j = 0; j < kOwn; ++j) own[j] *= factor;
    TACC_UNROLL
    for (int j = 0; j < kOwn; j += kPack) {
      const int column = c * kMma + place.column + j;
      if (exists && column < d) Store<kPack>(y, offset + column, own + j);
    }
    team.Sync();
  }
}

// By itself, so that what has no biases has its registers. own: scores of a thread's keys, -infinity of those not seen.
TACC_DEVICE inline void AddKeyBias(const AttentionWork& w, int64_t b, const RowTile& keys, const Place& place,
                                   float (&own)[kOwn]) {
  TACC_UNROLL
  for (int j = 0; j < kOwn; ++j) {
    if (own[j] != -INFINITY) own[j] = w.Biased(own[j], w.KeyBias(b, keys, place.column + j));
  }
}
// All biases of the scores of query i.
TACC_DEVICE inline void AddBias(const AttentionWork& w, int64_t b, int64_t head, const RowTile& queries, int i,
                                const RowTile& keys, const Place& place, float (&own)[kOwn]) {
  TACC_UNROLL
  for (int j = 0; j < kOwn; ++j) {
    if (own[j] != -INFINITY) own[j] = w.Biased(own[j], w.Bias<float>(b, head, queries, i, keys, place.column + j));
  }
}

// sums *= factor of each row, by way of the warp's scores.
TACC_DEVICE inline void ScaleSums(Team& team, int64_t d, const Place& place, float factor, float* scores,
                                  SumTile (&sums)[kD / kMma]) {
  TACC_UNROLL
  for (int c = 0; c < kD / kMma; c += 2) {
    if (c * kMma >= d) break;
    StoreScores(team, sums[c], sums[c + 1], scores);
    team.Sync();
    for (int j = 0; j < kOwn; ++j) scores[place.row * kScorePitch + place.column + j] *= factor;
    team.Sync();
    sums[c].Load(team, scores, kScorePitch);
    sums[c + 1].Load(team, scores + kMma, kScorePitch);
  }
  team.Sync();
}

// Queries in tiles; index = (tile from the last, batch, head): under a causal mask the longest first. A row's maximum
// is followed only when it has risen by kSlack: until then probabilities are larger than 1, but their sum, by which
// they are divided in the end, is as well. kHasBias: there is a bias of scores, of which others have no registers.
template <typename E, bool kHasBias>
struct QueriesOnTensorCores {
  static constexpr int kTeam = 128, kQueries = kTeam / kWarp * kMma, kPitch = kD + kPack;
  static constexpr float kSlack = 5;
  static constexpr int64_t kSharedBytes =
      (kQueries + 2 * kRows) * kPitch * sizeof(E) + kTeam / kWarp * kWarpScores * sizeof(float);

  AttentionWork work;
  int64_t num_query_tiles, num_key_tiles;
  AnyIn earlier_out, earlier_lse, sinks;
  AnyOut out, lse;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = work;
    const int64_t pairs = static_cast<int64_t>(w.num_batches) * w.num_heads;
    const int64_t b = index % pairs / w.num_heads, head = index % w.num_heads;
    const int64_t kv = head / (w.num_heads / w.num_kv_heads);
    const RowTile queries = TileAt<kQueries>(w.queries, num_query_tiles - 1 - index / pairs);
    const int64_t lowest = w.LowestKey(b, queries);
    const float slope = w.has_slopes ? static_cast<float>(w.slopes[head]) : 0.0f, scale = static_cast<float>(w.scale);
    E* q_rows = team.shared<E>();
    E* k_rows = q_rows + kQueries * kPitch;
    E* v_rows = k_rows + kRows * kPitch;
    const Place place(team);
    float* scores = reinterpret_cast<float*>(v_rows + kRows * kPitch) + place.warp * kWarpScores;
    E* weights = reinterpret_cast<E*>(scores);
    const int query = place.warp * kMma + place.row;
    const bool exists = query < queries.n;
    const int64_t first = exists ? w.FirstKey(b, queries, query) : 0;
    const int64_t own_offset = w.OutOffset(b, queries.row + query, head);

    LoadRows<kQueries, kTeam>(team, w.q, w.QueryOffset(b, queries.row, head), w.query_pitch, queries.n, w.d, q_rows);
    SumTile sums[kD / kMma];
    float maximum = sinks ? sinks.Load<float>(head) : -INFINITY;      // of the row
    float total = maximum != -INFINITY && place.column == 0 ? 1 : 0;  // of the thread's columns
    if (earlier_lse) {
      if (exists) maximum = earlier_lse.Load<float>(w.StatisticsOffset(b, queries.row + query, head));
      if (maximum != -INFINITY && place.column == 0) total = 1;
      TACC_UNROLL
      for (int c = 0; c < kD / kMma; c += 2) {
        for (int j = 0; j < kOwn; ++j) {
          const int column = c * kMma + place.column + j;
          scores[place.row * kScorePitch + place.column + j] =
              exists && column < w.d ? earlier_out.Load<float>(own_offset + column) : 0.0f;
        }
        team.Sync();
        sums[c].Load(team, scores, kScorePitch);
        sums[c + 1].Load(team, scores + kMma, kScorePitch);
        team.Sync();
      }
    } else {
      TACC_UNROLL
      for (int c = 0; c < kD / kMma; ++c) sums[c].Clear();
    }

    for (int64_t tile = 0; tile < num_key_tiles; ++tile) {
      const RowTile keys = TileAt<kRows>(w.keys, tile);
      if (!w.Meet(b, queries, lowest, keys)) continue;  // The same for the whole team.
      const int64_t offset = w.KeyOffset(b, keys.row, kv);
      LoadRows<kRows, kTeam>(team, w.k, offset, w.key_pitch, keys.n, w.d, k_rows);
      LoadRows<kRows, kTeam>(team, w.v, offset, w.key_pitch, keys.n, w.d, v_rows);
      team.Sync();
      SumTile products[2];
      MultiplyRows(team, w.d, q_rows + place.warp * kMma * kPitch, k_rows, products);
      StoreScores(team, products[0], products[1], scores);
      team.Sync();
      float own[kOwn], highest = -INFINITY;
      LoadOwn(scores, place, own);
      const Sight sight(w, queries, query, first, keys);
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const int key = place.column + j;
        const float score = ScoreOf(w, own[j], scale, slope, sight.distance + static_cast<float>(key));
        own[j] = key >= sight.low && key < sight.high ? score : -INFINITY;
      }
      if constexpr (kHasBias) {
        AddBias(w, b, head, queries, query, keys, place, own);
      } else if (w.key_bias != nullptr) {
        AddKeyBias(w, b, keys, place, own);
      }
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) highest = own[j] > highest ? own[j] : highest;
      const float other = team.Exchange(highest, 1);
      highest = other > highest ? other : highest;
      const bool rises = maximum == -INFINITY ? highest > maximum : highest > maximum + kSlack;
      const float correction = rises ? std::exp(maximum - highest) : 1.0f;
      if (rises) maximum = highest;
      if (team.Max(rises ? 1 : 0) != 0) {  // All have their scores by now.
        ScaleSums(team, w.d, place, correction, scores, sums);
      }
      // A row that has seen no key yet keeps zeros; NaN scores make NaN sums.
      const float shift = maximum == -INFINITY ? 0.0f : maximum;
      total *= correction;
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        own[j] = std::exp(own[j] - shift);
        total += own[j];
      }
      StoreOwn(own, place, weights);
      team.Sync();
      AddProducts(team, w.d, weights, v_rows, sums);
      team.Sync();
    }

    total += team.Exchange(total, 1);
    // A query that sees no key at all gives 0.
    const float inverse = total == 0 ? 0.0f : 1.0f / total;
    if (exists && place.column == 0) {
      lse.Store(w.StatisticsOffset(b, queries.row + query, head), maximum + (total == 0 ? 0.0f : std::log(total)));
    }
    StoreSums(team, sums, scores, place, exists, inverse, out, own_offset, w.d);
  }
};

// dk and dv, keys in tiles; index = (tile, batch, key/value head). Rows of scores are keys here, columns queries.
template <typename E, bool kHasBias>
struct KeysGradOnTensorCores : GradOnTensorCores<E> {
  using Base = GradOnTensorCores<E>;
  static constexpr int kTeam = Base::kTeam, kTile = Base::kTile;

  AnyOut dk, dv;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = this->work;
    const int64_t pairs = static_cast<int64_t>(w.num_batches) * w.num_kv_heads;
    const int64_t b = index % pairs / w.num_kv_heads, kv = index % w.num_kv_heads;
    const int group = w.num_heads / w.num_kv_heads;
    const RowTile keys = TileAt<kRows>(w.keys, index / pairs);
    const float scale = static_cast<float>(w.scale);
    E *k_rows = team.shared<E>(), *v_rows = k_rows + kTile, *q_rows = v_rows + kTile, *dout_rows = q_rows + kTile;
    const Place place(team);
    float* all_scores = reinterpret_cast<float*>(dout_rows + kTile);
    float *scores = all_scores + place.warp * 2 * kWarpScores, *score_gradients = scores + kWarpScores;
    E *weights = reinterpret_cast<E*>(scores), *gradients = reinterpret_cast<E*>(score_gradients);
    // Of each query: what it sees of the keys' tile, and its statistics.
    float *row_lse = all_scores + Base::kNumScores, *row_delta = row_lse + kRows, *row_distance = row_delta + kRows;
    int32_t *row_low = reinterpret_cast<int32_t*>(row_distance + kRows), *row_high = row_low + kRows;
    const int key = place.warp * kMma + place.row;
    const float bias = w.KeyBias(b, keys, key);
    this->LoadKeys(team, b, kv, keys, k_rows, v_rows);
    SumTile dk_sums[kD / kMma], dv_sums[kD / kMma];
    TACC_UNROLL
    for (int c = 0; c < kD / kMma; ++c) {
      dk_sums[c].Clear();
      dv_sums[c].Clear();
    }
    for (int64_t tile = 0; tile < this->num_query_tiles; ++tile) {
      const RowTile queries = TileAt<kRows>(w.queries, tile);
      if (!w.Meet(b, queries, w.LowestKey(b, queries), keys)) continue;  // The same for the whole team.
      for (int64_t head = kv * group; head < (kv + 1) * group; ++head) {
        const float slope = w.has_slopes ? static_cast<float>(w.slopes[head]) : 0.0f;
        this->LoadQueries(team, b, head, queries, q_rows, dout_rows);
        for (int i = team.rank(); i < kRows; i += kTeam) {
          const Sight sight(w, queries, i, i < queries.n ? w.FirstKey(b, queries, i) : 0, keys);
          row_lse[i] = this->Lse(b, head, queries, i);
          row_delta[i] = this->Delta(b, head, queries, i);
          row_distance[i] = sight.distance;
          row_low[i] = sight.low;
          row_high[i] = sight.high;
        }
        team.Sync();
        float own[kOwn], own_gradients[kOwn];
        this->MultiplyPairs(team, place, k_rows, q_rows, v_rows, dout_rows, scores, own, own_gradients);
        TACC_UNROLL
        for (int j = 0; j < kOwn; ++j) {
          const int query = place.column + j;
          const bool sees = key >= row_low[query] && key < row_high[query];
          float own_bias = bias;
          if constexpr (kHasBias) own_bias = sees ? w.Bias<float>(b, head, queries, query, keys, key) : 0.0f;
          const float score =
              w.Biased(ScoreOf(w, own[j], scale, slope, row_distance[query] + static_cast<float>(key)), own_bias);
          const float derivative = w.Derivative(own[j]);
          own[j] = sees ? std::exp(score - row_lse[query]) : 0.0f;
          own_gradients[j] = own[j] * (own_gradients[j] - row_delta[query]) * derivative;
        }
        team.Sync();
        StoreOwn(own, place, weights);
        StoreOwn(own_gradients, place, gradients);
        team.Sync();
        AddProducts(team, w.d, weights, dout_rows, dv_sums);
        AddProducts(team, w.d, gradients, q_rows, dk_sums);
        team.Sync();
      }
    }
    const int64_t offset = w.KeyOffset(b, keys.row + key, kv);
    StoreSums(team, dk_sums, scores, place, key < keys.n, 1, dk, offset, w.d);
    StoreSums(team, dv_sums, scores, place, key < keys.n, 1, dv, offset, w.d);
  }
};

// dq, queries in tiles; index as in QueriesOnTensorCores.
template <typename E, bool kHasBias>
struct QueriesGradOnTensorCores : GradOnTensorCores<E> {
  using Base = GradOnTensorCores<E>;
  static constexpr int kTile = Base::kTile;

  AnyOut dq;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = this->work;
    const int64_t pairs = static_cast<int64_t>(w.num_batches) * w.num_heads;
    const int64_t b = index % pairs / w.num_heads, head = index % w.num_heads;
    const int64_t kv = head / (w.num_heads / w.num_kv_heads);
    const RowTile queries = TileAt<kRows>(w.queries, this->num_query_tiles - 1 - index / pairs);
    const int64_t lowest = w.LowestKey(b, queries);
    const float slope = w.has_slopes ? static_cast<float>(w.slopes[head]) : 0.0f, scale = static_cast<float>(w.scale);
    E *q_rows = team.shared<E>(), *dout_rows = q_rows + kTile, *k_rows = dout_rows + kTile, *v_rows = k_rows + kTile;
    const Place place(team);
    float* scores = reinterpret_cast<float*>(v_rows + kTile) + place.warp * 2 * kWarpScores;
    float* score_gradients = scores + kWarpScores;
    E* gradients = reinterpret_cast<E*>(score_gradients);
    const int query = place.warp * kMma + place.row;
    const bool exists = query < queries.n;
    const int64_t first = exists ? w.FirstKey(b, queries, query) : 0;
    const float own_lse = this->Lse(b, head, queries, query), own_delta = this->Delta(b, head, queries, query);
    this->LoadQueries(team, b, head, queries, q_rows, dout_rows);
    SumTile sums[kD / kMma];
    TACC_UNROLL
    for (int c = 0; c < kD / kMma; ++c) sums[c].Clear();
    for (int64_t tile = 0; tile < this->num_key_tiles; ++tile) {
      const RowTile keys = TileAt<kRows>(w.keys, tile);
      if (!w.Meet(b, queries, lowest, keys)) continue;  // The same for the whole team.
      this->LoadKeys(team, b, kv, keys, k_rows, v_rows);
      team.Sync();
      float own[kOwn], own_gradients[kOwn];
      this->MultiplyPairs(team, place, q_rows, k_rows, dout_rows, v_rows, scores, own, own_gradients);
      const Sight sight(w, queries, query, first, keys);
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const int key = place.column + j;
        const bool sees = key >= sight.low && key < sight.high;
        float bias = 0;
        if constexpr (kHasBias) {
          if (sees) bias = w.Bias<float>(b, head, queries, query, keys, key);
        } else {
          bias = w.KeyBias(b, keys, key);
        }
        const float score = w.Biased(ScoreOf(w, own[j], scale, slope, sight.distance + static_cast<float>(key)), bias);
        const float weight = sees ? std::exp(score - own_lse) : 0.0f;
        own_gradients[j] = weight * (own_gradients[j] - own_delta) * w.Derivative(own[j]);
      }
      team.Sync();
      StoreOwn(own_gradients, place, gradients);
      team.Sync();
      AddProducts(team, w.d, gradients, k_rows, sums);
      team.Sync();
    }
    StoreSums(team, sums, scores, place, exists, 1, dq, w.QueryOffset(b, queries.row + query, head), w.d);
  }
};

template <typename E, bool kHasBias>
void Forward(const AttentionWork& work, const AttentionExtras& extras, const TensorView& out, const TensorView& lse) {
  using Kernel = QueriesOnTensorCores<E, kHasBias>;
  static_assert(Kernel::kSharedBytes <= kMaxSharedBytes);
  const int64_t query_tiles = NumTiles<Kernel::kQueries>(work.queries), key_tiles = NumTiles<kRows>(work.keys);
  ForEachExactTeam<Kernel::kTeam>(query_tiles * work.num_batches * work.num_heads, Kernel::kSharedBytes,
                                  Kernel{work, query_tiles, key_tiles, In(extras.earlier_out), In(extras.earlier_lse),
                                         In(extras.sinks), Out(out), Out(lse)});
}

template <typename E, bool kHasBias>
void Backward(const AttentionWork& work, const TensorView& dout, const TensorView& lse, const float* delta,
              const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  using Keys = KeysGradOnTensorCores<E, kHasBias>;
  using Queries = QueriesGradOnTensorCores<E, kHasBias>;
  static_assert(Keys::kSharedBytes <= kMaxSharedBytes);
  const int64_t query_tiles = NumTiles<kRows>(work.queries), key_tiles = NumTiles<kRows>(work.keys);
  const GradOnTensorCores<E> shared{work, query_tiles, key_tiles, In(dout), In(lse), delta};
  ForEachExactTeam<Keys::kTeam>(key_tiles * work.num_batches * work.num_kv_heads, Keys::kSharedBytes,
                                Keys{{shared}, Out(dk), Out(dv)});
  ForEachExactTeam<Keys::kTeam>(query_tiles * work.num_batches * work.num_heads, Keys::kSharedBytes,
                                Queries{{shared}, Out(dq)});
}

// Calls f.operator()<E, kHasBias>() with the operands' element.
template <typename F>
void WithElement(const AttentionWork& work, F f) {
  const auto of = [&]<typename E>() {
    work.bias.data == nullptr ? f.template operator()<E, false>() : f.template operator()<E, true>();
  };
  work.q.dtype == DType::kBF16 ? of.template operator()<BFloat16>() : of.template operator()<Half>();
}

}  // namespace

std::string WhyNotTensorAttention(const TensorView& q) {
  if (q.dtype != DType::kBF16 && q.dtype != DType::kF16) return std::string("its dtype is ") + Name(q.dtype);
  if (q.dims[3] % kPack != 0 || q.dims[3] > 128) return "its head dim is " + std::to_string(q.dims[3]);
  return "";
}

void TensorAttention::Run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
                          const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) const {
  TACC_KERNEL_CHECK(WhyNotTensorAttention(q).empty());
  if (parameters.dropout.parameters.rate > 0 || parameters.pitch % kPack != 0 || !ArePackable({q, k, v, out}))
    return kAttention.Attention(q, k, v, extras, parameters, out, lse);
  if (q.size() == 0) return;
  const AttentionWork work = WorkOf(q, k, v, extras.first_keys, parameters);
  TACC_KERNEL_CHECK(out.dims == q.dims && lse.size() == q.dims.Product(0, 3));
  TACC_KERNEL_CHECK(extras.earlier_lse.data == nullptr ||
                    (extras.earlier_out.dims == out.dims && extras.earlier_lse.size() == lse.size()));
  TACC_KERNEL_CHECK(extras.sinks.data == nullptr ||
                    (extras.sinks.size() == q.dims[2] && extras.earlier_lse.data == nullptr));
  WithElement(work, [&]<typename E, bool kHasBias>() { Forward<E, kHasBias>(work, extras, out, lse); });
}

void TensorAttention::RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                              const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                              const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
                              const TensorView& dv) const {
  TACC_KERNEL_CHECK(WhyNotTensorAttention(q).empty());
  if (parameters.dropout.parameters.rate > 0 || dout.dtype != q.dtype || parameters.pitch % kPack != 0 ||
      !ArePackable({dout, q, k, v, dq, dk, dv}))
    return kAttention.AttentionGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv);
  const AttentionWork work = WorkOf(q, k, v, first_keys, parameters);
  TACC_KERNEL_CHECK(dout.dims == q.dims && out.dims == q.dims && dq.dims == q.dims && dk.dims == k.dims &&
                    dv.dims == k.dims && lse.size() == q.dims.Product(0, 3));
  const Scratch scratch(q.dims.Product(0, 3) * static_cast<int64_t>(sizeof(float)));
  float* delta = static_cast<float*>(scratch.data());
  FindAttentionDelta(work, dout, out, delta);
  WithElement(work, [&]<typename E, bool kHasBias>() { Backward<E, kHasBias>(work, dout, lse, delta, dq, dk, dv); });
}

}  // namespace tacc::kernels::cuda
