// Attention of every device against the reference.
#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/buffer.h"
#include "kernels/reference/joined.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::Joined;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

struct Case {
  int64_t b, s, h, k, d;
};
const Case kCases[] = {{1, 1, 1, 1, 1},   {2, 7, 3, 3, 5}, {1, 70, 4, 2, 16},  {2, 33, 6, 1, 8},  {1, 130, 2, 2, 64},
                       {1, 600, 1, 1, 4}, {0, 4, 2, 2, 8}, {1, 37, 2, 1, 100}, {1, 19, 1, 1, 256}};
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// Half a unit in the last place of the results, and the f32 (f64) sums.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1.0 / 200;
    case DType::kF16:
      return 1.0 / 1800;
    case DType::kF32:
      return 1e-5;
    default:
      return 1e-11;
  }
}

TEST(Attention, MatchesTheReferenceForwardAndBackward) {
  for (const Case& c : kCases) {
    for (DType dtype : kFloats) {
      for (const bool causal : {true, false}) {
        for (const bool alibi : {false, true}) {
          if (c.s == 600 && (alibi || dtype == DType::kF64)) continue;  // several blocks of keys
          if (c.d > 128 && dtype == DType::kF64) continue;              // not on a GPU
          const Dims q_dims{c.b, c.s, c.h, c.d}, k_dims{c.b, c.s, c.k, c.d};
          const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
          const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
          AttentionParameters parameters{.causal = causal, .scale = 1 / std::sqrt(static_cast<double>(c.d))};
          if (alibi) {
            for (int64_t h = 0; h < c.h; ++h) parameters.alibi_slopes.push_back(std::pow(2.0, -8.0 * (h + 1) / c.h));
          }
          const auto want = reference::Attention(q, k, v, causal, parameters.scale, parameters.alibi_slopes);
          const auto gradient =
              reference::AttentionGrad(dout, q, k, v, causal, parameters.scale, parameters.alibi_slopes);
          const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
          const Buffer bq(dtype, q), bk(dtype, k), bv(dtype, v), bd(dtype, dout), out(dtype, q_dims);
          const Buffer lse(wide, Dims{c.b, c.h, c.s}), dq(dtype, q_dims), dk(dtype, k_dims), dv(dtype, k_dims);
          tested.attention.Attention(bq, bk, bv, {}, parameters, out, lse);
          const std::string what = std::string(Name(dtype)) + (causal ? " causal" : "") + (alibi ? " alibi" : "") +
                                   " s " + std::to_string(c.s) + " h " + std::to_string(c.h);
          EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype)) << what;
          EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), Tolerance(dtype)) << what;
          tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
          EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), Tolerance(dtype)) << what;
          EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype)) << what;
          EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype)) << what;
          EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact() && dq.GuardsIntact() && dk.GuardsIntact() &&
                      dv.GuardsIntact());
        }
      }
    }
  }
}

// x with `head_dim` entries in its last dim: zeros behind its own.
Tensor Widened(const Tensor& x, int64_t head_dim) {
  Dims dims = x.dims;
  dims[3] = head_dim;
  Tensor wide(dims);
  const int64_t own = x.dims[3], rows = x.dims.Product(0, 3);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t d = 0; d < std::min(own, head_dim); ++d) wide.values[row * head_dim + d] = x.values[row * own + d];
  }
  return wide;
}

// Zeros change no score, and values of zero give results of zero.
TEST(Attention, ValuesMayHaveAnotherHeadDim) {
  struct HeadDims {
    int64_t d, value;
  };
  for (const HeadDims& c : {HeadDims{24, 16}, HeadDims{8, 40}, HeadDims{100, 70}, HeadDims{192, 128}, HeadDims{1, 3}}) {
    for (DType dtype : kFloats) {
      if (c.d > 128 && dtype == DType::kF64) continue;  // not on a GPU
      SCOPED_TRACE(std::string(Name(dtype)) + " " + std::to_string(c.d) + " " + std::to_string(c.value));
      const int64_t widest = std::max(c.d, c.value);
      const Dims q_dims{2, 70, 4, c.d}, k_dims{2, 70, 2, c.d}, v_dims{2, 70, 2, c.value}, out_dims{2, 70, 4, c.value};
      const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
      const Tensor v = Rounded(Random(v_dims, 3), dtype), dout = Rounded(Random(out_dims, 4), dtype);
      const AttentionParameters parameters{.causal = true, .scale = 1 / std::sqrt(static_cast<double>(c.d))};
      const auto want =
          reference::Attention(Widened(q, widest), Widened(k, widest), Widened(v, widest), true, parameters.scale, {});
      const auto gradient = reference::AttentionGrad(Widened(dout, widest), Widened(q, widest), Widened(k, widest),
                                                     Widened(v, widest), true, parameters.scale, {});
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      const Buffer bq(dtype, q), bk(dtype, k), bv(dtype, v), bd(dtype, dout), out(dtype, out_dims);
      const Buffer lse(wide, Dims{2, 4, 70}), dq(dtype, q_dims), dk(dtype, k_dims), dv(dtype, v_dims);
      tested.attention.Attention(bq, bk, bv, {}, parameters, out, lse);
      EXPECT_LE(MaxError(Widened(out.ToTensor(), widest), want.out, 1), Tolerance(dtype));
      EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), Tolerance(dtype));
      tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      EXPECT_LE(MaxError(Widened(dq.ToTensor(), widest), gradient.dq, 1), Tolerance(dtype));
      EXPECT_LE(MaxError(Widened(dk.ToTensor(), widest), gradient.dk, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(Widened(dv.ToTensor(), widest), gradient.dv, 1), 2 * Tolerance(dtype));
      EXPECT_TRUE(out.GuardsIntact() && lse.GuardsIntact() && dq.GuardsIntact() && dk.GuardsIntact() &&
                  dv.GuardsIntact());
    }
  }
}

TEST(Attention, IsTheSameToTheBitForAnyNumberOfThreads) {
  const Dims q_dims{2, 150, 4, 24}, k_dims{2, 150, 2, 24};
  const Buffer q(DType::kF32, Random(q_dims, 1)), k(DType::kF32, Random(k_dims, 2)), v(DType::kF32, Random(k_dims, 3));
  const AttentionParameters parameters{.causal = true, .scale = 0.2};
  const int threads_before = omp_get_max_threads();
  std::vector<std::vector<double>> results;
  for (int threads : {1, 3, 16}) {
    omp_set_num_threads(threads);
    const Buffer out(DType::kF32, q_dims), lse(DType::kF32, Dims{2, 4, 150}), dq(DType::kF32, q_dims);
    const Buffer dk(DType::kF32, k_dims), dv(DType::kF32, k_dims);
    tested.attention.Attention(q, k, v, {}, parameters, out, lse);
    tested.attention.AttentionGrad(q, q, k, v, out, lse, {}, parameters, dq, dk, dv);
    results.emplace_back();
    for (const Buffer* buffer : {&out, &lse, &dq, &dk, &dv}) {
      const Tensor tensor = buffer->ToTensor();
      results.back().insert(results.back().end(), tensor.values.begin(), tensor.values.end());
    }
  }
  omp_set_num_threads(threads_before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(Attention, TakesOtherNumbersOfKeysThanQueries) {
  const Dims q_dims{2, 5, 4, 8}, k_dims{2, 11, 2, 8};
  const Tensor q = Random(q_dims, 1), k = Random(k_dims, 2), v = Random(k_dims, 3), dout = Random(q_dims, 4);
  const auto gradient = reference::AttentionGrad(dout, q, k, v, false, 0.3, {});
  const Buffer bq(DType::kF64, q), bk(DType::kF64, k), bv(DType::kF64, v), bd(DType::kF64, dout),
      out(DType::kF64, q_dims);
  const Buffer lse(DType::kF64, Dims{2, 4, 5}), dq(DType::kF64, q_dims), dk(DType::kF64, k_dims),
      dv(DType::kF64, k_dims);
  const AttentionParameters parameters{.causal = false, .scale = 0.3};
  tested.attention.Attention(bq, bk, bv, {}, parameters, out, lse);
  EXPECT_LE(MaxError(out.ToTensor(), reference::Attention(q, k, v, false, 0.3, {}).out, 1), 1e-9);
  tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
  EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 1e-9);
  EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 1e-9);
  EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 1e-9);
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

// Keys in parts, in an order of their own, as a ring of ranks sees them: the results over one part go on over the next,
// and the gradients of the parts add up to those of the whole.
TEST(Attention, GoesOnOverPartsOfTheKeys) {
  const Dims q_dims{2, 140, 4, 8}, k_dims{2, 140, 2, 8};
  const Tensor q = Random(q_dims, 1), k = Random(k_dims, 2), v = Random(k_dims, 3), dout = Random(q_dims, 4);
  const std::vector<double> slopes = {0.5, 0.25, 0.1, 0.05};
  const auto want = reference::Attention(q, k, v, true, 0.3, slopes);
  const auto gradient = reference::AttentionGrad(dout, q, k, v, true, 0.3, slopes);
  const std::vector<std::vector<SequenceRun>> parts = {{{35, 0}, {35, 105}}, {{70, 35}}};
  for (const std::vector<SequenceRun>& queries : parts) {
    std::vector<std::vector<int64_t>> rows;  // of the queries, then of each part of the keys
    for (const auto& runs : {queries, parts[0], parts[1]}) {
      rows.emplace_back();
      for (const SequenceRun& run : runs) {
        for (int64_t i = 0; i < run.length; ++i) rows.back().push_back(run.position + i);
      }
    }
    const Buffer bq(DType::kF64, Rows(q, rows[0])), bd(DType::kF64, Rows(dout, rows[0]));
    const Dims own_dims{2, 70, 4, 8}, key_dims{2, 70, 2, 8};
    Buffer out(DType::kF64, own_dims), lse(DType::kF64, Dims{2, 4, 70});
    AttentionParameters parameters{.causal = true, .scale = 0.3, .alibi_slopes = slopes, .queries = queries};
    AttentionExtras extras;
    // The own part first, so that each query sees a key.
    const std::vector<size_t> order = queries[0].position == 0 ? std::vector<size_t>{0, 1} : std::vector<size_t>{1, 0};
    for (size_t part : order) {
      const Buffer bk(DType::kF64, Rows(k, rows[1 + part])), bv(DType::kF64, Rows(v, rows[1 + part]));
      parameters.keys = parts[part];
      tested.attention.Attention(bq, bk, bv, extras, parameters, out, lse);
      extras = {{}, out, lse};
    }
    EXPECT_LE(MaxError(out.ToTensor(), Rows(want.out, rows[0]), 1), 1e-11);
    Tensor dq(own_dims);
    for (size_t part : order) {
      const Buffer bk(DType::kF64, Rows(k, rows[1 + part])), bv(DType::kF64, Rows(v, rows[1 + part]));
      const Buffer part_dq(DType::kF64, own_dims), dk(DType::kF64, key_dims), dv(DType::kF64, key_dims);
      parameters.keys = parts[part];
      tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, part_dq, dk, dv);
      const Tensor contribution = part_dq.ToTensor();
      for (size_t i = 0; i < dq.values.size(); ++i) dq.values[i] += contribution.values[i];
    }
    EXPECT_LE(MaxError(dq, Rows(gradient.dq, rows[0]), 1), 1e-11);
  }
}

// A part whose keys are all hidden changes nothing, before others as after them.
TEST(Attention, GoesOnOverHiddenKeys) {
  const Dims dims{1, 70, 2, 8};
  const Buffer q(DType::kF64, Random(dims, 1)), k(DType::kF64, Random(dims, 2)), v(DType::kF64, Random(dims, 3));
  const Buffer hidden(DType::kF32, Tensor(Dims{1, 70}, std::vector<double>(70, -INFINITY)));
  const Buffer want(DType::kF64, dims), want_lse(DType::kF64, Dims{1, 2, 70});
  const AttentionParameters all{.causal = false, .scale = 0.3};
  AttentionParameters none = all;
  none.key_bias = hidden;
  tested.attention.Attention(q, k, v, {}, all, want, want_lse);
  for (const auto& [first, second] : {std::pair(all, none), std::pair(none, all)}) {
    const Buffer part(DType::kF64, dims), part_lse(DType::kF64, Dims{1, 2, 70}), out(DType::kF64, dims),
        lse(DType::kF64, Dims{1, 2, 70});
    tested.attention.Attention(q, k, v, {}, first, part, part_lse);
    tested.attention.Attention(q, k, v, {.earlier_out = part, .earlier_lse = part_lse}, second, out, lse);
    EXPECT_LE(MaxError(out.ToTensor(), want.ToTensor(), 1), 1e-14);
    EXPECT_LE(MaxError(lse.ToTensor(), want_lse.ToTensor(), 1), 1e-14);
  }
}

// Rows of several documents give what the documents give one by one.
TEST(Attention, StaysWithinDocuments) {
  const std::vector<int64_t> starts = {0, 3, 67, 68, 150};
  const Dims q_dims{1, 150, 2, 8}, k_dims{1, 150, 1, 8};
  const Tensor q = Random(q_dims, 1), k = Random(k_dims, 2), v = Random(k_dims, 3), dout = Random(q_dims, 4);
  std::vector<int32_t> first_keys;
  for (size_t i = 0; i + 1 < starts.size(); ++i) first_keys.resize(starts[i + 1], static_cast<int32_t>(starts[i]));
  const TensorView first(TensorView{first_keys.data(), DType::kI32, {1, 150}});
  const AttentionParameters parameters{.causal = true, .scale = 0.3};
  const Buffer bq(DType::kF64, q), bk(DType::kF64, k), bv(DType::kF64, v), bd(DType::kF64, dout);
  const Buffer out(DType::kF64, q_dims), lse(DType::kF64, Dims{1, 2, 150}), dq(DType::kF64, q_dims);
  const Buffer dk(DType::kF64, k_dims), dv(DType::kF64, k_dims);
  tested.attention.Attention(bq, bk, bv, {first, {}, {}}, parameters, out, lse);
  tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, first, parameters, dq, dk, dv);
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    std::vector<int64_t> rows;
    for (int64_t row = starts[i]; row < starts[i + 1]; ++row) rows.push_back(row);
    const Tensor own_q = Rows(q, rows), own_k = Rows(k, rows), own_v = Rows(v, rows), own_dout = Rows(dout, rows);
    EXPECT_LE(MaxError(Rows(out.ToTensor(), rows), reference::Attention(own_q, own_k, own_v, true, 0.3, {}).out, 1),
              1e-11);
    const auto gradient = reference::AttentionGrad(own_dout, own_q, own_k, own_v, true, 0.3, {});
    EXPECT_LE(MaxError(Rows(dq.ToTensor(), rows), gradient.dq, 1), 1e-11);
    EXPECT_LE(MaxError(Rows(dk.ToTensor(), rows), gradient.dk, 1), 1e-11);
    EXPECT_LE(MaxError(Rows(dv.ToTensor(), rows), gradient.dv, 1), 1e-11);
  }
}

// Windows that end inside tiles of keys, soft caps that bend the scores, and probabilities that are dropped; alone, and
// all together with slopes and documents.
struct ShapeCase {
  const char* name;
  int64_t window = 0;
  double softcap = 0;
  double dropout = 0;
  bool has_slopes = false;
};
const ShapeCase kShapeCases[] = {{.name = "window", .window = 37},
                                 {.name = "window of one", .window = 1},
                                 {.name = "wide window", .window = 131},
                                 {.name = "softcap", .softcap = 0.7},
                                 {.name = "dropout", .dropout = 0.3},
                                 {.name = "all", .window = 65, .softcap = 1.5, .dropout = 0.1, .has_slopes = true}};

TEST(Attention, WindowsSoftCapsAndDropoutMatchTheReference) {
  constexpr int64_t kBatch = 2, kHeads = 4, kLength = 130, kFirstHead = 3, kStep = 5;
  const Dims q_dims{kBatch, kLength, kHeads, 16}, k_dims{kBatch, kLength, 2, 16};
  const int64_t samples[] = {11, 7}, step[] = {kStep};
  for (DType dtype : kFloats) {
    const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
    const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
    for (const ShapeCase& c : kShapeCases) {
      AttentionParameters parameters{.causal = true, .scale = 0.25, .window = c.window, .softcap = c.softcap};
      reference::AttentionShape shape{.window = c.window, .softcap = c.softcap};
      for (int64_t h = 0; c.has_slopes && h < kHeads; ++h) parameters.alibi_slopes.push_back(0.1 / (h + 1));
      Tensor mask(Dims{kBatch, kFirstHead + kHeads, kLength, kLength});
      if (c.dropout > 0) {
        // The op dropout on ones, of a sample of more heads.
        const Buffer ones(DType::kF64, Tensor(mask.dims, std::vector<double>(mask.dims.Product(), 1)));
        const Buffer kept(DType::kF64, mask.dims);
        parameters.dropout = {.parameters = {.rate = c.dropout, .key = 2, .seed = 9},
                              .step = {const_cast<int64_t*>(step), DType::kI64, {}},
                              .sample = {const_cast<int64_t*>(samples), DType::kI64, {kBatch}},
                              .first_head = kFirstHead,
                              .logical_queries = kLength,
                              .logical_keys = kLength};
        tested.dropout.Dropout(ones, parameters.dropout.step, parameters.dropout.sample, {},
                               parameters.dropout.parameters, kept);
        mask = kept.ToTensor();
        shape.kept = [&mask](int64_t b, int64_t h, int64_t i, int64_t j) {
          return mask[((b * (kFirstHead + kHeads) + kFirstHead + h) * kLength + i) * kLength + j];
        };
      }
      const auto want = reference::Attention(q, k, v, true, 0.25, parameters.alibi_slopes, shape);
      const auto gradient = reference::AttentionGrad(dout, q, k, v, true, 0.25, parameters.alibi_slopes, shape);
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      const Buffer bq(dtype, q), bk(dtype, k), bv(dtype, v), bd(dtype, dout), out(dtype, q_dims);
      const Buffer lse(wide, Dims{kBatch, kHeads, kLength}), dq(dtype, q_dims), dk(dtype, k_dims), dv(dtype, k_dims);
      tested.attention.Attention(bq, bk, bv, {}, parameters, out, lse);
      tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      const std::string what = std::string(Name(dtype)) + " " + c.name;
      EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype)) << what;
      EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype)) << what;
    }
  }
}

// As one more key of value 0, with the same score for each query.
TEST(Attention, ASinkTakesItsShareOfTheSoftmax) {
  const Dims q_dims{2, 70, 4, 8}, k_dims{2, 70, 2, 8};
  const std::vector<double> sinks = {0.5, -2, 3, -std::numeric_limits<double>::infinity()};
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
    const Tensor q = Rounded(Random(q_dims, 1), dtype), k = Rounded(Random(k_dims, 2), dtype);
    const Tensor v = Rounded(Random(k_dims, 3), dtype);
    auto want = reference::Attention(q, k, v, true, 0.3, {});
    for (int64_t i = 0; i < want.lse.size(); ++i) {  // [B,H,S]
      const int64_t b = i / 280, h = i / 70 % 4, s = i % 70;
      const double before = want.lse[i];
      want.lse[i] = std::log(std::exp(before) + std::exp(sinks[h]));
      for (int64_t d = 0; d < 8; ++d) want.out[((b * 70 + s) * 4 + h) * 8 + d] *= std::exp(before - want.lse[i]);
    }
    const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    const Buffer bq(dtype, q), bk(dtype, k), bv(dtype, v), out(dtype, q_dims), lse(wide, Dims{2, 4, 70});
    const Buffer of_heads(dtype, Tensor{Dims{4}, sinks});
    const AttentionParameters parameters{.causal = true, .scale = 0.3};
    tested.attention.Attention(bq, bk, bv, {.sinks = of_heads}, parameters, out, lse);
    EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype)) << Name(dtype);
    EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), Tolerance(dtype)) << Name(dtype);
  }
}

// Queries and keys of kTokens rows, and who sees whom.
constexpr int64_t kTokens = 75;
struct Mask {
  const char* name;
  bool causal = true;
  std::vector<SequenceRun> runs = {};
  bool has_documents = false, has_slopes = false, goes_on = false;
};
const Mask kMasks[] = {{.name = "causal"},
                       {.name = "all", .causal = false, .goes_on = true},
                       {.name = "documents", .has_documents = true},
                       {.name = "zigzag", .runs = {{32, 0}, {35, 110}}, .has_slopes = true, .goes_on = true},
                       {.name = "blocks", .runs = {{20, 0, 0}, {25, 20, 0}, {30, 0, 1}}}};

// Multi-head, grouped and multi-query; with elements of nobody behind the heads of a token, or none.
struct JoinedCase {
  int64_t b, h, k, d, gap;
};
const JoinedCase kJoinedCases[] = {
    {1, 2, 2, 8, 0}, {1, 4, 2, 16, 8}, {2, 3, 1, 5, 3}, {1, 2, 2, 12, 0}, {1, 2, 1, 72, 1}};

// Heads of one tensor give to the bit what the same numbers give alone, and nothing is written between them.
TEST(Attention, TakesHeadsOfOneTensor) {
  std::vector<int32_t> first_keys;
  for (int32_t i = 0; i < 2 * kTokens; ++i) first_keys.push_back(i % kTokens < 33 ? 0 : i % kTokens < 35 ? 33 : 35);
  for (const JoinedCase& c : kJoinedCases) {
    const Dims q_dims{c.b, kTokens, c.h, c.d}, k_dims{c.b, kTokens, c.k, c.d};
    const Tensor q = Random(q_dims, 1, 2), k = Random(k_dims, 2, 2), v = Random(k_dims, 3), dout = Random(q_dims, 4);
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF64}) {
      for (const Mask& mask : kMasks) {
        // Between parts of the keys results are in f32, as the graph has them.
        const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32, result = mask.goes_on ? wide : dtype;
        const Buffer::Placement place = mask.causal ? Buffer::Placement::kAligned : Buffer::Placement::kOffByOne;
        const int64_t pitch = (c.h + 2 * c.k) * c.d + c.gap;
        const Buffer bq(dtype, q, place), bk(dtype, k, place), bv(dtype, v, place), bd(dtype, dout, place);
        const Buffer dq(result, q_dims, place), dk(result, k_dims, place), dv(result, k_dims, place);
        const Joined operands(dtype, q, k, v, pitch, place), gradients(result, q_dims, k_dims, pitch, place);
        AttentionParameters parameters{.causal = mask.causal, .scale = 0.3, .queries = mask.runs, .keys = mask.runs};
        for (int64_t h = 0; mask.has_slopes && h < c.h; ++h) parameters.alibi_slopes.push_back(0.5 / (h + 1));
        TensorView first;
        if (mask.has_documents) first = {first_keys.data(), DType::kI32, {c.b, kTokens}};

        const auto compute = [&](const TensorView& x, const TensorView& y, const TensorView& z, const TensorView& dx,
                                 const TensorView& dy, const TensorView& dz) {
          const Buffer out(result, q_dims, place), lse(wide, Dims{c.b, c.h, kTokens});
          tested.attention.Attention(x, y, z, {first, {}, {}}, parameters, out, lse);
          if (mask.goes_on) tested.attention.Attention(x, y, z, {first, out, lse}, parameters, out, lse);
          tested.attention.AttentionGrad(bd, x, y, z, out, lse, first, parameters, dx, dy, dz);
          return std::pair(out.ToTensor().values, lse.ToTensor().values);
        };
        const auto alone = compute(bq, bk, bv, dq, dk, dv);
        parameters.pitch = pitch;
        const auto joined =
            compute(operands.q(), operands.k(), operands.v(), gradients.q(), gradients.k(), gradients.v());
        const std::string what = std::string(Name(dtype)) + " " + mask.name + " h " + std::to_string(c.h) + " k " +
                                 std::to_string(c.k) + " d " + std::to_string(c.d);
        EXPECT_TRUE(joined == alone) << what;
        EXPECT_TRUE(gradients.Alone(gradients.q()).values == dq.ToTensor().values) << what;
        EXPECT_TRUE(gradients.Alone(gradients.k()).values == dk.ToTensor().values) << what;
        EXPECT_TRUE(gradients.Alone(gradients.v()).values == dv.ToTensor().values) << what;
        EXPECT_TRUE(gradients.GuardsIntact()) << what;
      }
    }
  }
}

// Without queries the gradients of keys are 0, and only they are written.
TEST(Attention, GradientsWithoutQueriesAreZero) {
  const Dims q_dims{2, 3, 0, 4}, k_dims{2, 3, 2, 4};
  const Tensor k = Random(k_dims, 1);
  const Buffer bq(DType::kF32, q_dims), bk(DType::kF32, k), lse(DType::kF32, Dims{2, 0, 3});
  for (int64_t pitch : {0, 18}) {
    const Buffer dk(DType::kF32, k_dims), dv(DType::kF32, k_dims);
    const Joined operands(DType::kF32, Tensor(q_dims), k, k, 18, Buffer::Placement::kOffByOne);
    const Joined gradients(DType::kF32, q_dims, k_dims, 18, Buffer::Placement::kOffByOne);
    if (pitch == 0) {
      tested.attention.AttentionGrad(bq, bq, bk, bk, bq, lse, {}, {}, bq, dk, dv);
    } else {
      tested.attention.AttentionGrad(bq, operands.q(), operands.k(), operands.v(), bq, lse, {}, {.pitch = pitch},
                                     gradients.q(), gradients.k(), gradients.v());
    }
    const std::vector<double> zeros(k.values.size());
    EXPECT_EQ(pitch == 0 ? dk.ToTensor().values : gradients.Alone(gradients.k()).values, zeros);
    EXPECT_EQ(pitch == 0 ? dv.ToTensor().values : gradients.Alone(gradients.v()).values, zeros);
    EXPECT_TRUE(gradients.GuardsIntact());
  }
}

}  // namespace
}  // namespace tacc::kernels
