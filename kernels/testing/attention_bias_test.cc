// Biases of keys and of scores in attention, of every device against the reference.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

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

// Keys that are hidden on the right, on the left, all of them and in whole blocks, beside finite biases, and such as
// outweigh all scores; alone, and with what scores go through.
constexpr int64_t kBiased = 150;
double BiasOf(int64_t b, int64_t j) {
  if (b == 0) return j < 100 ? 0 : -INFINITY;
  if (b == 1) return j < 77 ? -INFINITY : 0.25 * static_cast<double>(j % 5);
  if (b == 2 || b == 4) return b == 2 ? -INFINITY : INFINITY;
  return j % 3 == 0 ? -INFINITY : j % 7 == 0 ? INFINITY : -0.5 * static_cast<double>(j % 4);
}

TEST(AttentionBias, OfKeysMatchesTheReference) {
  struct BiasCase {
    int64_t queries;
    bool causal;
    double softcap = 0;
    std::vector<double> slopes = {};
  };
  Tensor bias(Dims{5, kBiased});
  for (int64_t i = 0; i < bias.size(); ++i) bias[i] = BiasOf(i / kBiased, i % kBiased);
  const Buffer of_keys(DType::kF32, bias);
  for (const BiasCase& c : {BiasCase{70, false}, {kBiased, true}, {kBiased, true, 1.5, {0.1, 0.05, 0.02, 0.01}}}) {
    for (DType dtype : kFloats) {
      SCOPED_TRACE(std::string(Name(dtype)) + (c.causal ? " causal" : "") + (c.softcap > 0 ? " softcap" : ""));
      const Dims q_dims{5, c.queries, 4, 16}, k_dims{5, kBiased, 2, 16};
      const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
      const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
      const AttentionParameters parameters{
          .causal = c.causal, .scale = 0.25, .softcap = c.softcap, .alibi_slopes = c.slopes, .key_bias = of_keys};
      const reference::AttentionShape shape{.softcap = c.softcap, .key_bias = BiasOf};
      const auto want = reference::Attention(q, k, v, c.causal, 0.25, c.slopes, shape);
      const auto gradient = reference::AttentionGrad(dout, q, k, v, c.causal, 0.25, c.slopes, shape);
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      const Buffer bq(dtype, q), bk(dtype, k), bv(dtype, v), bd(dtype, dout), out(dtype, q_dims);
      const Buffer lse(wide, Dims{5, 4, c.queries}), dq(dtype, q_dims), dk(dtype, k_dims), dv(dtype, k_dims);
      tested.attention.Attention(bq, bk, bv, {}, parameters, out, lse);
      tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype));
      EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), Tolerance(dtype));
    }
  }
}

// Finite ones, hidden keys, such as outweigh all scores, and queries that see nothing.
double ScoreBiasOf(int64_t b, int64_t h, int64_t i, int64_t j) {
  if (i == 3 || (i + j) % 11 == h) return -INFINITY;
  if (i % 9 == 4 && j % 13 == 2 + b) return INFINITY;
  return 0.25 * static_cast<double>((3 * i + j + 2 * h) % 7) - 0.5 * static_cast<double>(b);
}

TEST(AttentionBias, OfScoresMatchesTheReference) {
  struct BiasCase {
    const char* name;
    int64_t samples, heads, queries;
    bool causal = false, has_key_bias = false;
    double softcap = 0;
    std::vector<double> slopes = {};
  };
  for (const BiasCase& c : {BiasCase{"of each", 3, 4, 70},
                            {"the same for samples", 1, 4, kBiased, true},
                            {"the same for heads", 3, 1, 70, false, true},
                            {"the same for all", 1, 1, kBiased, true, true, 1.5, {0.1, 0.05, 0.02, 0.01}}}) {
    for (DType dtype : kFloats) {
      SCOPED_TRACE(std::string(Name(dtype)) + " " + c.name);
      const auto b_of = [&](int64_t b) { return c.samples == 1 ? 0 : b; };
      const auto h_of = [&](int64_t h) { return c.heads == 1 ? 0 : h; };
      const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
      const Dims q_dims{3, c.queries, 4, 16}, k_dims{3, kBiased, 2, 16}, dims{c.samples, c.heads, c.queries, kBiased};
      Tensor values(dims), of_keys(Dims{3, kBiased});
      for (int64_t i = 0; i < values.size(); ++i) {
        const int64_t row = i / kBiased, head = row / c.queries;
        values[i] = ScoreBiasOf(head / c.heads, head % c.heads, row % c.queries, i % kBiased);
      }
      for (int64_t i = 0; i < of_keys.size(); ++i) of_keys[i] = BiasOf(i / kBiased, i % kBiased);
      const Buffer bias(wide, values), key_bias(DType::kF32, of_keys);
      const Tensor q = Rounded(Random(q_dims, 1, 2), dtype), k = Rounded(Random(k_dims, 2, 2), dtype);
      const Tensor v = Rounded(Random(k_dims, 3), dtype), dout = Rounded(Random(q_dims, 4), dtype);
      AttentionParameters parameters{.causal = c.causal, .scale = 0.25, .softcap = c.softcap, .alibi_slopes = c.slopes};
      reference::AttentionShape shape{.softcap = c.softcap};
      parameters.bias = bias;
      shape.bias = [&](int64_t b, int64_t h, int64_t i, int64_t j) { return ScoreBiasOf(b_of(b), h_of(h), i, j); };
      if (c.has_key_bias) {
        parameters.key_bias = key_bias;
        shape.key_bias = BiasOf;
        parameters.bias_yields = shape.bias_yields = true;
      }
      const auto want = reference::Attention(q, k, v, c.causal, 0.25, c.slopes, shape);
      const auto gradient = reference::AttentionGrad(dout, q, k, v, c.causal, 0.25, c.slopes, shape);
      Tensor dbias_want(dims);
      for (int64_t i = 0; i < gradient.dbias.size(); ++i) {
        const int64_t pair = i % (c.queries * kBiased), head = i / (c.queries * kBiased);
        dbias_want[(b_of(head / 4) * c.heads + h_of(head % 4)) * c.queries * kBiased + pair] += gradient.dbias[i];
      }
      const Buffer bq(dtype, q), bk(dtype, k), bv(dtype, v), bd(dtype, dout), out(dtype, q_dims);
      const Buffer lse(wide, Dims{3, 4, c.queries}), dq(dtype, q_dims), dk(dtype, k_dims), dv(dtype, k_dims);
      const Buffer dbias(wide, dims);
      tested.attention.Attention(bq, bk, bv, {}, parameters, out, lse);
      tested.attention.AttentionGrad(bd, bq, bk, bv, out, lse, {}, parameters, dq, dk, dv);
      tested.attention.AttentionBiasGrad(bd, bq, bk, bv, out, lse, {}, parameters, dbias);
      EXPECT_LE(MaxError(out.ToTensor(), want.out, 1), Tolerance(dtype));
      EXPECT_LE(MaxError(dq.ToTensor(), gradient.dq, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(dk.ToTensor(), gradient.dk, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(dv.ToTensor(), gradient.dv, 1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), Tolerance(dtype));
      EXPECT_LE(MaxError(dbias.ToTensor(), dbias_want, 1), 2 * Tolerance(dtype));
    }
  }
}

}  // namespace
}  // namespace tacc::kernels
