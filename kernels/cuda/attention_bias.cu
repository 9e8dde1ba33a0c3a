// The gradient of attention's bias: sums of the gradients of scores over the samples, and over the heads, that share an
// entry. A team has a tile of queries and one of keys, and goes over what shares it. In parts of the samples where all
// share the bias, so that a GPU has enough teams (contract/attention.h, BiasGradParts).
#include <cmath>

#include "kernels/contract/attention.h"
#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/attention_tensor_tiles.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/attention_work.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/pack.h"
#include "kernels/cuda/scratch.h"

namespace tacc::kernels::cuda {
namespace {

// Where the gradient of a bias is summed: the parts of the samples, and a tensor for each, one behind the other.
struct BiasSums {
  int32_t num_parts;
  AnyOut sums;
};

// What one team sums of it: tiles of queries and keys, samples [b, limit_b) and heads [head, limit_head).
struct BiasEntry {
  int64_t key_tile, query_tile, part, entry_b, b, limit_b, head, limit_head;

  TACC_DEVICE BiasEntry(const AttentionWork& w, const BiasSums& parts, int64_t index, int64_t num_query_tiles,
                        int64_t num_key_tiles) {
    const int64_t heads = w.bias_head == 0 ? 1 : w.num_heads, samples = w.bias_batch == 0 ? 1 : w.num_batches;
    head = index % heads;
    limit_head = w.bias_head == 0 ? w.num_heads : head + 1;
    index /= heads;
    entry_b = index % samples;
    index /= samples;
    key_tile = index % num_key_tiles;
    index /= num_key_tiles;
    query_tile = index % num_query_tiles;
    part = index / num_query_tiles;
    b = w.bias_batch == 0 ? w.num_batches * part / parts.num_parts : entry_b;
    limit_b = w.bias_batch == 0 ? w.num_batches * (part + 1) / parts.num_parts : entry_b + 1;
  }
  // Where the keys of a query's sums begin.
  TACC_DEVICE int64_t Row(const AttentionWork& w, int64_t row) const {
    const int64_t heads = w.bias_head == 0 ? 1 : w.num_heads;
    return ((part + entry_b) * heads + (w.bias_head == 0 ? 0 : head)) * w.s * w.t + row * w.t;
  }
};

template <typename C>
struct SumOfParts {
  const C* sums;
  int64_t num_parts, size;
  AnyOut y;

  TACC_DEVICE void operator()(int64_t i) const {
    C sum = sums[i];
    for (int64_t part = 1; part < num_parts; ++part) sum += sums[part * size + i];
    y.Store(i, sum);
  }
};

// dbias by sum(parts), which makes the sums of the parts.
template <typename C, typename F>
void SumInParts(const AttentionWork& work, const TensorView& dbias, const F& sum) {
  const int64_t parts = kernels::BiasGradParts(dbias.dims, work.num_batches), size = dbias.size();
  if (parts == 1) return sum(BiasSums{1, Out(dbias)});
  const Scratch scratch(parts * size * static_cast<int64_t>(sizeof(C)));
  C* const sums = static_cast<C*>(scratch.data());
  sum(BiasSums{static_cast<int32_t>(parts),
               Out({sums, sizeof(C) == 8 ? DType::kF64 : DType::kF32, Dims{parts, size}})});
  ForEach(size, SumOfParts<C>{sums, parts, size, Out(dbias)});
}

}  // namespace

namespace tiles {
namespace {

// dbias; index = (part of the samples, query tile, key tile, sample, head), of those that have a bias of their own.
template <typename C, int kD>
struct AttentionGradBias : AttentionGradWork<C, kD> {
  using Base = AttentionGradWork<C, kD>;
  static constexpr int kRows = Base::kRows, kOwn = Base::kOwn;

  BiasSums parts;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = this->work;
    const BiasEntry entry(w, parts, index, this->num_query_tiles, this->num_key_tiles);
    const RowTile keys = TileAt<kRows>(w.keys, entry.key_tile), queries = TileAt<kRows>(w.queries, entry.query_tile);
    const int group = w.num_heads / w.num_kv_heads, ty = team.rank() / kSide, tx = team.rank() % kSide;
    C* q_rows = team.shared<C>();
    C* dout_rows = q_rows + Base::kTile;
    C* k_rows = dout_rows + Base::kTile;
    C* v_rows = k_rows + Base::kTile;
    C* row_lse = v_rows + Base::kTile;
    C* row_delta = row_lse + kRows;
    C sums[kOwn][kOwn];
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) sums[i][j] = 0;
    }
    for (int64_t b = entry.b; b < entry.limit_b; ++b) {
      if (!w.Meet(b, queries, w.LowestKey(b, queries), keys)) continue;  // The same for the whole team.
      for (int64_t head = entry.head; head < entry.limit_head; ++head) {
        this->LoadKeys(team, b, head / group, keys, k_rows, v_rows);
        this->LoadQueries(team, b, head, queries, q_rows, dout_rows, row_lse, row_delta);
        team.Sync();
        this->ForEachScore(b, head, queries, keys, ty, tx, q_rows, dout_rows, k_rows, v_rows, row_lse, row_delta,
                           [&](int i, int j, int query, int key, C, C gradient) {
                             if (w.HasBiasGrad<C>(b, head, queries, query, keys, key)) sums[i][j] += gradient;
                           });
        team.Sync();
      }
    }
    TACC_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int query = ty + kSide * i;
      const int64_t row = entry.Row(w, queries.row + query) + keys.row;
      TACC_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const int key = tx + kSide * j;
        if (query < queries.n && key < keys.n) parts.sums.Store(row + key, sums[i][j]);
      }
    }
  }
};

template <typename C, int kD>
void BiasBackward(const AttentionWork& work, const TensorView& dout, const TensorView& lse, const C* delta,
                  const TensorView& dbias) {
  using Kernel = AttentionGradBias<C, kD>;
  static_assert(sizeof(Kernel) <= 4000 && Kernel::kSharedBytes <= kMaxSharedBytes);
  const int64_t query_tiles = NumTiles<Kernel::kRows>(work.queries), key_tiles = NumTiles<Kernel::kRows>(work.keys);
  const AttentionGradWork<C, kD> shared{work, query_tiles, key_tiles, In(dout), In(lse), delta};
  SumInParts<C>(work, dbias, [&](const BiasSums& parts) {
    ForEachTeam<kTeam>(parts.num_parts * query_tiles * key_tiles * dbias.dims[0] * dbias.dims[1], kTeam,
                       Kernel::kSharedBytes, Kernel{{shared}, parts});
  });
}

}  // namespace
}  // namespace tiles

namespace tensor_tiles {
namespace {

// dbias; index as in AttentionGradBias.
template <typename E>
struct BiasGradOnTensorCores : GradOnTensorCores<E> {
  using Base = GradOnTensorCores<E>;
  static constexpr int kTeam = Base::kTeam, kTile = Base::kTile;

  BiasSums parts;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const AttentionWork& w = this->work;
    const BiasEntry entry(w, parts, index, this->num_query_tiles, this->num_key_tiles);
    const RowTile keys = TileAt<kRows>(w.keys, entry.key_tile), queries = TileAt<kRows>(w.queries, entry.query_tile);
    const int group = w.num_heads / w.num_kv_heads;
    const float scale = static_cast<float>(w.scale);
    E *q_rows = team.shared<E>(), *dout_rows = q_rows + kTile, *k_rows = dout_rows + kTile, *v_rows = k_rows + kTile;
    const Place place(team);
    float* scores = reinterpret_cast<float*>(v_rows + kTile) + place.warp * 2 * kWarpScores;
    const int query = place.warp * kMma + place.row;
    float sums[kOwn];
    TACC_UNROLL
    for (int j = 0; j < kOwn; ++j) sums[j] = 0;
    for (int64_t b = entry.b; b < entry.limit_b; ++b) {
      if (!w.Meet(b, queries, w.LowestKey(b, queries), keys)) continue;  // The same for the whole team.
      const Sight sight(w, queries, query, query < queries.n ? w.FirstKey(b, queries, query) : 0, keys);
      for (int64_t head = entry.head; head < entry.limit_head; ++head) {
        const float slope = w.has_slopes ? static_cast<float>(w.slopes[head]) : 0.0f;
        const float own_lse = this->Lse(b, head, queries, query), own_delta = this->Delta(b, head, queries, query);
        this->LoadKeys(team, b, head / group, keys, k_rows, v_rows);
        this->LoadQueries(team, b, head, queries, q_rows, dout_rows);
        team.Sync();
        float own[kOwn], own_gradients[kOwn];
        this->MultiplyPairs(team, place, q_rows, k_rows, dout_rows, v_rows, scores, own, own_gradients);
        TACC_UNROLL
        for (int j = 0; j < kOwn; ++j) {
          const int key = place.column + j;
          if (key < sight.low || key >= sight.high) continue;
          const float score = w.Biased(ScoreOf(w, own[j], scale, slope, sight.distance + static_cast<float>(key)),
                                       w.Bias<float>(b, head, queries, query, keys, key));
          if (w.HasBiasGrad<float>(b, head, queries, query, keys, key))
            sums[j] += std::exp(score - own_lse) * (own_gradients[j] - own_delta);
        }
        team.Sync();
      }
    }
    const int64_t row = entry.Row(w, queries.row + query) + keys.row;
    TACC_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      if (query < queries.n && place.column + j < keys.n) parts.sums.Store(row + place.column + j, sums[j]);
    }
  }
};

template <typename E>
void BiasBackward(const AttentionWork& work, const TensorView& dout, const TensorView& lse, const float* delta,
                  const TensorView& dbias) {
  using Kernel = BiasGradOnTensorCores<E>;
  const int64_t query_tiles = NumTiles<kRows>(work.queries), key_tiles = NumTiles<kRows>(work.keys);
  const GradOnTensorCores<E> shared{work, query_tiles, key_tiles, In(dout), In(lse), delta};
  SumInParts<float>(work, dbias, [&](const BiasSums& parts) {
    ForEachExactTeam<Kernel::kTeam>(parts.num_parts * query_tiles * key_tiles * dbias.dims[0] * dbias.dims[1],
                                    Kernel::kSharedBytes, Kernel{{shared}, parts});
  });
}

}  // namespace
}  // namespace tensor_tiles

namespace {

bool OnTensorCores(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                   const AttentionParameters& parameters) {
  return WhyNotTensorAttention(q).empty() && parameters.dropout.parameters.rate == 0 && dout.dtype == q.dtype &&
         v.dims[3] == q.dims[3] && ArePackable({dout, q, k, v});
}

void TensorBiasGrad(const AttentionWork& work, const TensorView& dout, const TensorView& out, const TensorView& lse,
                    const TensorView& dbias) {
  const Scratch scratch(lse.size() * static_cast<int64_t>(sizeof(float)));
  float* delta = static_cast<float*>(scratch.data());
  FindAttentionDelta(work, dout, out, delta);
  const auto run = [&]<typename E>() { tensor_tiles::BiasBackward<E>(work, dout, lse, delta, dbias); };
  work.q.dtype == DType::kBF16 ? run.template operator()<BFloat16>() : run.template operator()<Half>();
}

}  // namespace

void AttentionBiasGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const TensorView& lse, const TensorView& first_keys,
                       const AttentionParameters& parameters, const TensorView& dbias) {
  if (dbias.size() == 0) return;
  const AttentionWork work = WorkOf(q, k, v, first_keys, parameters);
  TACC_KERNEL_CHECK(parameters.pitch == 0 && parameters.bias.data != nullptr && dbias.dims == parameters.bias.dims);
  TACC_KERNEL_CHECK(dout.dims == AttentionResultDims(q, v) && out.dims == dout.dims &&
                    lse.size() == q.dims[0] * q.dims[1] * q.dims[2]);
  if (OnTensorCores(dout, q, k, v, parameters)) return TensorBiasGrad(work, dout, out, lse, dbias);
  // In smaller tiles for small head dims too: in large ones its sums do not fit into registers.
  tiles::WithDelta(work, q, dout, out, [&]<typename C, int kD>(const C* delta) {
    tiles::BiasBackward<C, kD == 64 ? 128 : kD>(work, dout, lse, delta, dbias);
  });
}

}  // namespace tacc::kernels::cuda
