// Attention on tensor cores against the reference.
#include "kernels/cuda/attention_tensor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kernels/contract/attention.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernels.h"
#include "kernels/reference/buffer.h"
#include "kernels/reference/joined.h"
#include "kernels/reference/reference.h"

namespace tacc::kernels::cuda {
namespace {

using reference::Buffer;
using reference::Joined;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

constexpr DType kTypes[] = {DType::kBF16, DType::kF16};

// Probabilities, or their gradients, and then results are rounded to the dtype: half a unit in the last place each.
double Tolerance(DType dtype) { return dtype == DType::kBF16 ? 1.0 / 200 : 1.0 / 1800; }

Buffer Aligned(DType dtype, const Tensor& x) { return Buffer(dtype, x, Buffer::Placement::kAligned); }
Buffer Aligned(DType dtype, const Dims& dims) { return Buffer(dtype, dims, Buffer::Placement::kAligned); }

const TensorAttention kTensorCores;

TEST(AttentionOnTensorCores, TakesWhatCanBeMovedInPacks) {
  for (DType dtype : kTypes) {
    EXPECT_EQ(WhyNotTensorAttention({nullptr, dtype, {1, 2, 3, 128}}), "");
    EXPECT_EQ(WhyNotTensorAttention({nullptr, dtype, {1, 2, 3, 136}}), "its head dim is 136");
    EXPECT_EQ(WhyNotTensorAttention({nullptr, dtype, {1, 2, 3, 20}}), "its head dim is 20");
  }
  EXPECT_EQ(WhyNotTensorAttention({nullptr, DType::kF32, {1, 2, 3, 64}}), "its dtype is f32");
}

struct Case {
  int64_t b, s, h, k, d;
  double scale;  // 0: as usual
};
// The last one's probabilities are all but 0 and 1, so that maxima rise from tile to tile.
const Case kCases[] = {{2, 7, 3, 3, 8, 0},   {1, 70, 4, 2, 16, 0},  {1, 130, 2, 2, 64, 0},
                       {2, 37, 2, 1, 72, 0}, {1, 99, 2, 1, 128, 0}, {1, 150, 2, 2, 40, 1}};

TEST(AttentionOnTensorCores, MatchesTheReferenceForwardAndBackward) {
  for (const Case& c : kCases) {
    for (DType dtype : kTypes) {
      for (const bool causal : {true, false}) {
        for (const bool alibi : {false, true}) {
          const Dims q_dims{c.b, c.s, c.h, c.d}, k_dims{c.b, c.s, c.k, c.d};
          const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
          const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
          AttentionParameters parameters{.causal = causal,
                                         .scale = c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.d))};
          if (alibi) {
            for (int64_t h = 0; h < c.h; ++h) parameters.alibi_slopes.push_back(std::pow(2.0, -8.0 * (h + 1) / c.h));
          }
          const auto want = reference::Attention(q, k, v, causal, parameters.scale, parameters.alibi_slopes);
          const auto gradient =
              reference::AttentionGrad(dout, q, k, v, causal, parameters.scale, parameters.alibi_slopes);
          const Buffer bq = Aligned(dtype, q), bk = Aligned(dtype, k), bv = Aligned(dtype, v),
                       bd = Aligned(dtype, dout);
          const Buffer out = Aligned(dtype, q_dims), dq = Aligned(dtype, q_dims), dk = Aligned(dtype, k_dims),
                       dv = Aligned(dtype, k_dims), lse(DType::kF32, Dims{c.b, c.h, c.s});
          kTensorCores.Run(bq, bk, bv, {}, parameters, out, lse);
          const std::string what = std::string(Name(dtype)) + (causal ? " causal" : "") + (alibi ? " alibi" : "") +
                                   " s " + std::to_string(c.s) + " d " + std::to_string(c.d);
          EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype)) << what;
          EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), 1e-5) << what;
          kTensorCores.RunGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
          // Sums of a score's gradient times a number of up to 2: `size` is that of a score to the usual one.
          const double size = std::max(1.0, c.scale * std::sqrt(static_cast<double>(c.d)));
          EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, size), 2 * Tolerance(dtype)) << what;
          EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, size), 2 * Tolerance(dtype)) << what;
          EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype)) << what;
          EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact() && dq.GuardsIntact() && dk.GuardsIntact() &&
                      dv.GuardsIntact());
        }
      }
    }
  }
}

// The given rows of dim 1.
Tensor Rows(const Tensor& x, const std::vector<int64_t>& rows) {
  Dims dims = x.dims;
  dims[1] = static_cast<int64_t>(rows.size());
  return reference::Gather(x, dims, [&](const std::vector<int64_t>& index) {
    std::vector<int64_t> from = index;
    from[1] = rows[index[1]];
    return from;
  });
}

// As a ring of ranks sees keys: by parts, in an order of their own, results going on from part to part.
TEST(AttentionOnTensorCores, GoesOnOverPartsOfTheKeys) {
  const Dims q_dims{2, 140, 4, 24}, k_dims{2, 140, 2, 24}, own_dims{2, 70, 4, 24}, key_dims{2, 70, 2, 24};
  const DType dtype = DType::kBF16;
  const Tensor q = Rounded(Random(q_dims, 1), dtype), k = Rounded(Random(k_dims, 2), dtype);
  const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
  const std::vector<double> slopes = {0.5, 0.25, 0.1, 0.05};
  const auto want = reference::Attention(q, k, v, true, 0.3, slopes);
  const auto gradient = reference::AttentionGrad(dout, q, k, v, true, 0.3, slopes);
  const std::vector<std::vector<SequenceRun>> parts = {{{35, 0}, {35, 105}}, {{70, 35}}};
  const auto rows_of = [](const std::vector<SequenceRun>& runs) {
    std::vector<int64_t> rows;
    for (const SequenceRun& run : runs) {
      for (int64_t i = 0; i < run.length; ++i) rows.push_back(run.position + i);
    }
    return rows;
  };
  for (const std::vector<SequenceRun>& queries : parts) {
    const std::vector<int64_t> own = rows_of(queries);
    const Buffer bq = Aligned(dtype, Rows(q, own)), bd = Aligned(dtype, Rows(dout, own));
    // Between parts results are in f32, as the graph has them.
    Buffer out = Aligned(DType::kF32, own_dims), lse(DType::kF32, Dims{2, 4, 70});
    AttentionParameters parameters{.causal = true, .scale = 0.3, .alibi_slopes = slopes, .queries = queries};
    AttentionExtras extras;
    for (const std::vector<SequenceRun>& keys : parts) {
      parameters.keys = keys;
      const Buffer bk = Aligned(dtype, Rows(k, rows_of(keys))), bv = Aligned(dtype, Rows(v, rows_of(keys)));
      kTensorCores.Run(bq, bk, bv, extras, parameters, out, lse);
      extras = {{}, out, lse};
    }
    EXPECT_LE(MaxError(out.ToTensor(), Rows(want.out, own), 1), Tolerance(dtype));
    Tensor dq(own_dims);
    for (const std::vector<SequenceRun>& keys : parts) {
      parameters.keys = keys;
      const Buffer bk = Aligned(dtype, Rows(k, rows_of(keys))), bv = Aligned(dtype, Rows(v, rows_of(keys)));
      const Buffer part_dq = Aligned(DType::kF32, own_dims), dk = Aligned(DType::kF32, key_dims),
                   dv = Aligned(DType::kF32, key_dims);
      kTensorCores.RunGrad(bd, bq, bk, bv, out, lse, {}, parameters, part_dq, dk, dv);
      const Tensor contribution = part_dq.ToTensor();
      for (size_t i = 0; i < dq.values.size(); ++i) dq.values[i] += contribution.values[i];
    }
    EXPECT_LE(MaxError(dq, Rows(gradient.dq, own), 1), 2 * Tolerance(dtype));
  }
}

// Windows that end inside tiles, and soft caps.
TEST(AttentionOnTensorCores, WindowsAndSoftCapsMatchTheReference) {
  const Dims q_dims{2, 130, 4, 16}, k_dims{2, 130, 2, 16};
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
    const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
    for (const reference::AttentionShape& shape :
         {reference::AttentionShape{.window = 37}, reference::AttentionShape{.window = 1},
          reference::AttentionShape{.softcap = 0.7}, reference::AttentionShape{.window = 65, .softcap = 1.5}}) {
      const AttentionParameters parameters{
          .causal = true, .scale = 0.25, .window = shape.window, .softcap = shape.softcap};
      const auto want = reference::Attention(q, k, v, true, 0.25, {}, shape);
      const auto gradient = reference::AttentionGrad(dout, q, k, v, true, 0.25, {}, shape);
      const Buffer bq = Aligned(dtype, q), bk = Aligned(dtype, k), bv = Aligned(dtype, v), bd = Aligned(dtype, dout);
      const Buffer out = Aligned(dtype, q_dims), dq = Aligned(dtype, q_dims), dk = Aligned(dtype, k_dims),
                   dv = Aligned(dtype, k_dims), lse(DType::kF32, Dims{2, 4, 130});
      kTensorCores.Run(bq, bk, bv, {}, parameters, out, lse);
      kTensorCores.RunGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      const std::string what = std::string(Name(dtype)) + " window " + std::to_string(shape.window);
      EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype)) << what;
    }
  }
}

// Keys that are hidden on the right, on the left, all of them and in whole tiles, beside finite biases, and such as
// outweigh all scores.
double BiasOf(int64_t b, int64_t j) {
  if (b == 0) return j < 100 ? 0 : -INFINITY;
  if (b == 1) return j < 77 ? -INFINITY : 0.25 * static_cast<double>(j % 5);
  if (b == 2 || b == 4) return b == 2 ? -INFINITY : INFINITY;
  return j % 3 == 0 ? -INFINITY : j % 7 == 0 ? INFINITY : -0.5 * static_cast<double>(j % 4);
}

TEST(AttentionOnTensorCores, BiasesOfKeysMatchTheReference) {
  constexpr int64_t kKeys = 150;
  Tensor bias(Dims{5, kKeys});
  for (int64_t i = 0; i < bias.size(); ++i) bias[i] = BiasOf(i / kKeys, i % kKeys);
  const Buffer of_keys(DType::kF32, bias);
  for (DType dtype : kTypes) {
    for (const bool causal : {true, false}) {
      const int64_t queries = causal ? kKeys : 70;
      const Dims q_dims{5, queries, 4, 16}, k_dims{5, kKeys, 2, 16};
      const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
      const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
      const AttentionParameters parameters{.causal = causal, .scale = 0.25, .softcap = 1.5, .key_bias = of_keys};
      const reference::AttentionShape shape{.softcap = 1.5, .key_bias = BiasOf};
      const auto want = reference::Attention(q, k, v, causal, 0.25, {}, shape);
      const auto gradient = reference::AttentionGrad(dout, q, k, v, causal, 0.25, {}, shape);
      const Buffer bq = Aligned(dtype, q), bk = Aligned(dtype, k), bv = Aligned(dtype, v), bd = Aligned(dtype, dout);
      const Buffer out = Aligned(dtype, q_dims), dq = Aligned(dtype, q_dims), dk = Aligned(dtype, k_dims),
                   dv = Aligned(dtype, k_dims), lse(DType::kF32, Dims{5, 4, queries});
      kTensorCores.Run(bq, bk, bv, {}, parameters, out, lse);
      kTensorCores.RunGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      const std::string what = std::string(Name(dtype)) + (causal ? " causal" : "");
      EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), 1e-5) << what;
      EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype)) << what;
    }
  }
}

// Of each head the same for all samples, whose gradient is a sum over them; of each sample and head; and of all alike.
TEST(AttentionOnTensorCores, BiasesOfScoresMatchTheReference) {
  constexpr int64_t kKeys = 150;
  const auto value = [](int64_t b, int64_t h, int64_t i, int64_t j) {
    if (i == 3 || (i + j) % 11 == h) return -static_cast<double>(INFINITY);
    if (i % 9 == 4 && j % 13 == 2 + b) return static_cast<double>(INFINITY);
    return 0.25 * static_cast<double>((3 * i + j + 2 * h) % 7) - 0.5 * static_cast<double>(b);
  };
  for (DType dtype : kTypes) {
    for (const auto& [samples, heads, causal] : {std::tuple(1, 4, true), {3, 4, false}, {1, 1, false}}) {
      const int64_t queries = causal ? kKeys : 70;
      const Dims q_dims{3, queries, 4, 16}, k_dims{3, kKeys, 2, 16}, dims{samples, heads, queries, kKeys};
      const auto of = [&, samples = samples, heads = heads](int64_t b, int64_t h, int64_t i, int64_t j) {
        return value(samples == 1 ? 0 : b, heads == 1 ? 0 : h, i, j);
      };
      Tensor values(dims), of_keys(Dims{3, kKeys}), dbias_want(dims);
      for (int64_t i = 0; i < values.size(); ++i) {
        const int64_t row = i / kKeys, head = row / queries;
        values[i] = value(head / heads, head % heads, row % queries, i % kKeys);
      }
      for (int64_t i = 0; i < of_keys.size(); ++i) of_keys[i] = BiasOf(i / kKeys, i % kKeys);
      const Buffer bias(DType::kF32, values), key_bias(DType::kF32, of_keys), dbias(DType::kF32, dims);
      const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
      const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
      const AttentionParameters parameters{
          .causal = causal, .scale = 0.25, .softcap = 1.5, .key_bias = key_bias, .bias = bias, .bias_yields = causal};
      const reference::AttentionShape shape{.softcap = 1.5, .key_bias = BiasOf, .bias = of, .bias_yields = causal};
      const auto want = reference::Attention(q, k, v, causal, 0.25, {}, shape);
      const auto gradient = reference::AttentionGrad(dout, q, k, v, causal, 0.25, {}, shape);
      for (int64_t i = 0; i < gradient.dbias.size(); ++i) {
        const int64_t pair = i % (queries * kKeys), head = i / (queries * kKeys);
        const int64_t entry = (samples == 1 ? 0 : head / 4) * heads + (heads == 1 ? 0 : head % 4);
        dbias_want[entry * queries * kKeys + pair] += gradient.dbias[i];
      }
      const Buffer bq = Aligned(dtype, q), bk = Aligned(dtype, k), bv = Aligned(dtype, v), bd = Aligned(dtype, dout);
      const Buffer out = Aligned(dtype, q_dims), dq = Aligned(dtype, q_dims), dk = Aligned(dtype, k_dims),
                   dv = Aligned(dtype, k_dims), lse(DType::kF32, Dims{3, 4, queries});
      kTensorCores.Run(bq, bk, bv, {}, parameters, out, lse);
      kTensorCores.RunGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      kAttention.AttentionBiasGrad(bd, bq, bk, bv, out, lse, {}, parameters, dbias);
      const std::string what = std::string(Name(dtype)) + (causal ? " causal" : "");
      EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), 1e-5) << what;
      EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dbias.ToTensor(), dbias_want, 1), 2 * Tolerance(dtype)) << what;
    }
  }
}

// As one more key of value 0: going on from a result of its score that is 0 gives the same to the bit.
TEST(AttentionOnTensorCores, ASinkIsAnEarlierKeyOfValueZero) {
  const Dims q_dims{1, 70, 2, 16}, k_dims{1, 70, 1, 16};
  const DType dtype = DType::kBF16;
  const Buffer q = Aligned(dtype, Random(q_dims, 1)), k = Aligned(dtype, Random(k_dims, 2));
  const Buffer v = Aligned(dtype, Random(k_dims, 3)), out = Aligned(dtype, q_dims), want = Aligned(dtype, q_dims);
  Tensor scores(Dims{1, 2, 70});
  for (int64_t i = 0; i < scores.size(); ++i) scores[i] = i < 70 ? 0.5 : -2;
  const Buffer sinks(dtype, Tensor{Dims{2}, {0.5, -2}}), earlier_lse(DType::kF32, scores);
  const Buffer earlier_out = Aligned(dtype, Tensor(q_dims)), lse(DType::kF32, Dims{1, 2, 70}),
               want_lse(DType::kF32, Dims{1, 2, 70});
  const AttentionParameters parameters{.causal = true, .scale = 0.3};
  kTensorCores.Run(q, k, v, {.sinks = sinks}, parameters, out, lse);
  kTensorCores.Run(q, k, v, {.earlier_out = earlier_out, .earlier_lse = earlier_lse}, parameters, want, want_lse);
  EXPECT_EQ(out.ToTensor().values, want.ToTensor().values);
  EXPECT_EQ(lse.ToTensor().values, want_lse.ToTensor().values);
}

// Rows of several documents give what the documents give one by one.
TEST(AttentionOnTensorCores, StaysWithinDocuments) {
  const std::vector<int64_t> starts = {0, 3, 67, 68, 150};
  const Dims q_dims{1, 150, 2, 16}, k_dims{1, 150, 1, 16};
  const DType dtype = DType::kF16;
  const Tensor q = Rounded(Random(q_dims, 1), dtype), k = Rounded(Random(k_dims, 2), dtype);
  const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
  std::vector<int32_t> first_keys;
  for (size_t i = 0; i + 1 < starts.size(); ++i) first_keys.resize(starts[i + 1], static_cast<int32_t>(starts[i]));
  const TensorView first{first_keys.data(), DType::kI32, {1, 150}};
  const AttentionParameters parameters{.causal = true, .scale = 0.3};
  const Buffer bq = Aligned(dtype, q), bk = Aligned(dtype, k), bv = Aligned(dtype, v), bd = Aligned(dtype, dout);
  const Buffer out = Aligned(dtype, q_dims), dq = Aligned(dtype, q_dims), dk = Aligned(dtype, k_dims),
               dv = Aligned(dtype, k_dims), lse(DType::kF32, Dims{1, 2, 150});
  kTensorCores.Run(bq, bk, bv, {first, {}, {}}, parameters, out, lse);
  kTensorCores.RunGrad(bd, bq, bk, bv, out, lse, first, parameters, dq, dk, dv);
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    std::vector<int64_t> rows;
    for (int64_t row = starts[i]; row < starts[i + 1]; ++row) rows.push_back(row);
    const Tensor own_q = Rows(q, rows), own_k = Rows(k, rows), own_v = Rows(v, rows), own_dout = Rows(dout, rows);
    EXPECT_LE(MaxError(Rows(out.ToTensor(), rows), reference::Attention(own_q, own_k, own_v, true, 0.3, {}).out, 1),
              Tolerance(dtype));
    const auto gradient = reference::AttentionGrad(own_dout, own_q, own_k, own_v, true, 0.3, {});
    EXPECT_LE(MaxError(Rows(dq.ToTensor(), rows), gradient.dq, 1), 2 * Tolerance(dtype));
    EXPECT_LE(MaxError(Rows(dk.ToTensor(), rows), gradient.dk, 1), 2 * Tolerance(dtype));
    EXPECT_LE(MaxError(Rows(dv.ToTensor(), rows), gradient.dv, 1), 2 * Tolerance(dtype));
  }
}

TEST(AttentionOnTensorCores, LeavesWhatIsNotAlignedToPlainCores) {
  const Dims dims{1, 9, 2, 8};
  for (Buffer::Placement place : {Buffer::Placement::kAligned, Buffer::Placement::kOffByOne}) {
    const Tensor x = Rounded(Random(dims, 1), DType::kBF16);
    const Buffer q = Aligned(DType::kBF16, x), k(DType::kBF16, x, place), out = Aligned(DType::kBF16, dims),
                 dq = Aligned(DType::kBF16, dims), dk = Aligned(DType::kBF16, dims), dv = Aligned(DType::kBF16, dims);
    const Buffer lse(DType::kF32, Dims{1, 2, 9});
    kTensorCores.Run(q, k, q, {}, {}, out, lse);
    kTensorCores.RunGrad(q, q, k, q, out, lse, {}, {}, dq, dk, dv);
    EXPECT_LE(MaxError(out.ToTensor(), reference::Attention(x, x, x, true, 1, {}).out, 1), Tolerance(DType::kBF16));
    EXPECT_LE(MaxError(dk.ToTensor(), reference::AttentionGrad(x, x, x, x, true, 1, {}).dk, 1),
              2 * Tolerance(DType::kBF16));
  }
}

// Queries before all keys see none: results 0 and -infinity, and gradients of zero.
TEST(AttentionOnTensorCores, OfQueriesThatSeeNoKeyIsZero) {
  const Dims q_dims{1, 40, 2, 8}, k_dims{1, 50, 2, 8};
  const DType dtype = DType::kBF16;
  const Buffer q = Aligned(dtype, Random(q_dims, 1)), k = Aligned(dtype, Random(k_dims, 2));
  const Buffer out = Aligned(dtype, q_dims), dq = Aligned(dtype, q_dims), dk = Aligned(dtype, k_dims),
               dv = Aligned(dtype, k_dims), lse(DType::kF32, Dims{1, 2, 40});
  const AttentionParameters parameters{.causal = true, .scale = 0.3, .queries = {{40, 0}}, .keys = {{50, 38}}};
  kTensorCores.Run(q, k, k, {}, parameters, out, lse);
  kTensorCores.RunGrad(q, q, k, k, out, lse, {}, parameters, dq, dk, dv);
  for (int64_t i = 0; i < out.view().size(); ++i) {
    if (i / 16 < 38) {
      EXPECT_EQ(out.ToTensor()[i], 0);
      EXPECT_EQ(dq.ToTensor()[i], 0);
    } else {
      EXPECT_NE(out.ToTensor()[i], 0);
    }
  }
  for (int64_t i = 0; i < 80; ++i) EXPECT_EQ(std::isinf(lse.ToTensor()[i]), i % 40 < 38);
  // The keys from position 40 on are seen by nobody.
  for (int64_t i = 2 * 16; i < dk.view().size(); ++i) EXPECT_TRUE(dk.ToTensor()[i] == 0 && dv.ToTensor()[i] == 0);
}

// Plain cores.
class PlainAttention : public FastAttention {
 public:
  void Run(const TensorView& q, const TensorView& k, const TensorView& v, const AttentionExtras& extras,
           const AttentionParameters& parameters, const TensorView& out, const TensorView& lse) const override {
    kAttention.Attention(q, k, v, extras, parameters, out, lse);
  }
  void RunGrad(const TensorView& dout, const TensorView& q, const TensorView& k, const TensorView& v,
               const TensorView& out, const TensorView& lse, const TensorView& first_keys,
               const AttentionParameters& parameters, const TensorView& dq, const TensorView& dk,
               const TensorView& dv) const override {
    kAttention.AttentionGrad(dout, q, k, v, out, lse, first_keys, parameters, dq, dk, dv);
  }
};
const PlainAttention kPlain;

struct JoinedCase {
  int64_t b, h, k, d, gap;
};

// Heads of one tensor give to the bit what the same numbers give alone, and nothing is written between them: as packs,
// or on plain cores where the pitch makes none.
TEST(AttentionOnTensorCores, TakesHeadsOfOneTensor) {
  constexpr int64_t kTokens = 75;
  std::vector<int32_t> first_keys;
  for (int32_t i = 0; i < 2 * kTokens; ++i) first_keys.push_back(i % kTokens < 33 ? 0 : i % kTokens < 35 ? 33 : 35);
  const std::vector<SequenceRun> zigzag = {{32, 0}, {35, 110}};
  const AttentionParameters masks[] = {{.causal = true, .scale = 0.3},
                                       {.causal = false, .scale = 0.3},
                                       {.causal = true, .scale = 0.3, .queries = zigzag, .keys = zigzag}};
  for (const JoinedCase& c : {JoinedCase{2, 2, 2, 8, 0}, {1, 4, 2, 40, 8}, {1, 3, 1, 128, 0}, {1, 2, 1, 16, 4}}) {
    const Dims q_dims{c.b, kTokens, c.h, c.d}, k_dims{c.b, kTokens, c.k, c.d};
    const int64_t pitch = (c.h + 2 * c.k) * c.d + c.gap;
    const Tensor q = Random(q_dims, 1, 2), k = Random(k_dims, 2, 2), v = Random(k_dims, 3), dout = Random(q_dims, 4);
    for (DType dtype : kTypes) {
      for (AttentionParameters parameters : masks) {
        // Between parts of the keys results are in f32.
        const bool goes_on = !parameters.keys.empty();
        const DType result = goes_on ? DType::kF32 : dtype;
        TensorView first;
        if (parameters.causal && !goes_on) first = {first_keys.data(), DType::kI32, {c.b, kTokens}};
        const Buffer bq = Aligned(dtype, q), bk = Aligned(dtype, k), bv = Aligned(dtype, v), bd = Aligned(dtype, dout);
        const Buffer dq = Aligned(result, q_dims), dk = Aligned(result, k_dims), dv = Aligned(result, k_dims);
        const Joined operands(dtype, q, k, v, pitch, Buffer::Placement::kAligned);
        const Joined gradients(result, q_dims, k_dims, pitch, Buffer::Placement::kAligned);
        const auto compute = [&](const FastAttention& attention, const TensorView& x, const TensorView& y,
                                 const TensorView& z, const TensorView& dx, const TensorView& dy,
                                 const TensorView& dz) {
          const Buffer out = Aligned(result, q_dims), lse(DType::kF32, Dims{c.b, c.h, kTokens});
          attention.Run(x, y, z, {first, {}, {}}, parameters, out, lse);
          if (goes_on) attention.Run(x, y, z, {first, out, lse}, parameters, out, lse);
          attention.RunGrad(bd, x, y, z, out, lse, first, parameters, dx, dy, dz);
          return std::pair(out.ToTensor().values, lse.ToTensor().values);
        };
        const bool in_packs = pitch % 8 == 0;
        const auto alone =
            compute(in_packs ? static_cast<const FastAttention&>(kTensorCores) : kPlain, bq, bk, bv, dq, dk, dv);
        parameters.pitch = pitch;
        const auto joined = compute(kTensorCores, operands.q(), operands.k(), operands.v(), gradients.q(),
                                    gradients.k(), gradients.v());
        const std::string what = std::string(Name(dtype)) + " h " + std::to_string(c.h) + " d " + std::to_string(c.d) +
                                 (parameters.causal ? " causal" : "");
        EXPECT_TRUE(joined == alone) << what;
        EXPECT_TRUE(gradients.Alone(gradients.q()).values == dq.ToTensor().values) << what;
        EXPECT_TRUE(gradients.Alone(gradients.k()).values == dk.ToTensor().values) << what;
        EXPECT_TRUE(gradients.Alone(gradients.v()).values == dv.ToTensor().values) << what;
        EXPECT_TRUE(gradients.GuardsIntact()) << what;
      }
    }
  }
}

}  // namespace
}  // namespace tacc::kernels::cuda
