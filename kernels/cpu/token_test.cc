// Kernels over tokens: rotary, embedding, cross-entropy.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/rotary.h"
#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"

namespace tacc::kernels::cpu {
namespace {

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1.0 / 250;
    case DType::kF16:
      return 1.0 / 2000;
    case DType::kF32:
      return 4e-6;
    default:
      return 1e-11;
  }
}
DType Wide(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

TensorView Ids(std::vector<int32_t>& ids) { return {ids.data(), DType::kI32, {static_cast<int64_t>(ids.size())}}; }

TEST(Rotary, MatchesTheReferenceAndItsInverseUndoesIt) {
  for (const auto& [d, half] : {std::pair<int64_t, int64_t>{8, 4}, {64, 32}, {64, 16}, {6, 3}, {10, 2}, {1030, 515}}) {
    const std::string kStyles[] = {"half", "interleaved"};
    for (const std::string& style : kStyles) {
      for (DType dtype : kFloats) {
        std::vector<double> inv_freq;
        for (int64_t i = 0; i < half; ++i) inv_freq.push_back(std::pow(10000.0, -static_cast<double>(i) / half));
        const Dims dims{2, 5, 3, d};
        const Tensor x = Rounded(Random(dims, d), dtype);
        const Buffer cos(Wide(dtype), Dims{5, half}), sin(Wide(dtype), Dims{5, half}), in(dtype, x), y(dtype, dims);
        RopeTable(inv_freq, 1.25, {0, 1, 2, 3, 4}, {}, cos, sin);
        for (int64_t p = 0; p < 5; ++p) {
          EXPECT_NEAR(cos.ToTensor()[p * half + half - 1], 1.25 * std::cos(p * inv_freq[half - 1]), 1e-6);
          EXPECT_NEAR(sin.ToTensor()[p * half], 1.25 * std::sin(static_cast<double>(p)), 1e-6);
        }
        const RotaryStyle kind = style == "half" ? RotaryStyle::kHalf : RotaryStyle::kInterleaved;
        Rotary(in, cos, sin, kind, RotaryDirection::kForward, y);
        EXPECT_LE(MaxError(y.ToTensor(), reference::Rotary(x, cos.ToTensor(), sin.ToTensor(), style, 1), 1e-1),
                  Tolerance(dtype));
        Rotary(in, cos, sin, kind, RotaryDirection::kInverse, in);  // in place
        EXPECT_LE(MaxError(in.ToTensor(), reference::Rotary(x, cos.ToTensor(), sin.ToTensor(), style, -1), 1e-1),
                  Tolerance(dtype));
        EXPECT_TRUE(y.GuardsIntact() && in.GuardsIntact());
      }
    }
  }
}

TEST(Embedding, LooksUpAndScattersWithAnOffset) {
  std::vector<int32_t> ids = {7, 3, 3, 11, 4, 3, 0, 5};
  for (int64_t n : {1, 5, 200, 700}) {
    for (DType dtype : kFloats) {
      const Tensor table = Rounded(Random({4, n}, 1), dtype), dy = Rounded(Random({8, n}, 2), dtype);
      const Buffer t(dtype, table), y(DType::kF32, Dims{8, n}), same(dtype, Dims{8, n});
      Embedding(t, Ids(ids), 3, y);
      EXPECT_LE(MaxError(y.ToTensor(), reference::Embedding(table, ids, 3), 1), 1e-7);
      Embedding(t, Ids(ids), 3, same);
      EXPECT_EQ(same.ToTensor().values, reference::Embedding(table, ids, 3).values);
      const Buffer d(dtype, dy), dtable(Wide(dtype), Dims{4, n});
      EmbeddingGrad(d, Ids(ids), 3, dtable);
      EXPECT_LE(MaxError(dtable.ToTensor(), reference::EmbeddingGrad(dy, ids, 3, {4, n}), 1e-1), 1e-6);
      EXPECT_TRUE(y.GuardsIntact() && dtable.GuardsIntact());
    }
  }
}

TEST(CrossEntropy, MatchesTheReference) {
  for (int64_t v : {1, 3, 511, 1025, 5000}) {
    for (DType dtype : kFloats) {
      for (int64_t offset : {0, 2}) {
        std::vector<int32_t> targets = {0, -1, static_cast<int32_t>(v - 1), 2, -100};
        const Tensor logits = Rounded(Random({5, v}, v, 20), dtype);
        const auto want = reference::CrossEntropy(logits, targets, offset);
        const Buffer x(dtype, logits), loss(Wide(dtype), Dims{}), count(Wide(dtype), Dims{}), lse(Wide(dtype), Dims{5});
        CrossEntropy(x, Ids(targets), offset, {5}, loss, count, lse);
        EXPECT_NEAR(loss.ToTensor()[0], want.loss, 2e-5 * (1 + std::fabs(want.loss)));
        EXPECT_EQ(count.ToTensor()[0], 3);
        EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), 1e-6);
        const Buffer dloss(DType::kF32, Tensor(Dims{}, {0.5})), dx(dtype, Dims{5, v});
        const Tensor gradient = reference::CrossEntropyGrad(logits, targets, want.lse, 0.5, offset);
        CrossEntropyGrad(x, Ids(targets), lse, dloss, offset, {5}, dx);
        EXPECT_LE(MaxError(dx.ToTensor(), gradient, 1e-2), 10 * Tolerance(dtype)) << Name(dtype) << " v " << v;
        CrossEntropyGrad(x, Ids(targets), lse, dloss, offset, {5}, x);  // over the logits
        EXPECT_EQ(x.ToTensor().values, dx.ToTensor().values);
        EXPECT_TRUE(dx.GuardsIntact() && lse.GuardsIntact());
      }
    }
  }
}

TEST(CrossEntropy, LeavesOutPadding) {
  std::vector<int32_t> targets = {0, 1, 2, 3, 0, 1}, existing = {0, 1, -1, 3, 0, -1};
  const TensorView ids{targets.data(), DType::kI32, {2, 3}};
  const Tensor logits = Rounded(Random({2, 3, 4}, 5), DType::kF32);
  const auto want = reference::CrossEntropy(logits, existing, 0);
  const Buffer x(DType::kF32, logits), loss(DType::kF32, Dims{}), count(DType::kF32, Dims{}),
      lse(DType::kF32, Dims{2, 3});
  CrossEntropy(x, ids, 0, {2, 2}, loss, count, lse);
  EXPECT_NEAR(loss.ToTensor()[0], want.loss, 1e-5);
  EXPECT_EQ(count.ToTensor()[0], 4);
  const Buffer dloss(DType::kF32, Tensor(Dims{}, {1.0})), dx(DType::kF32, Dims{2, 3, 4});
  CrossEntropyGrad(x, ids, lse, dloss, 0, {2, 2}, dx);
  EXPECT_LE(MaxError(dx.ToTensor(), reference::CrossEntropyGrad(logits, existing, want.lse, 1, 0), 1e-1), 1e-5);
}

TEST(CrossEntropy, TakesMinusInfinityAndShowsNan) {
  std::vector<int32_t> targets = {1};
  const Buffer loss(DType::kF32, Dims{}), count(DType::kF32, Dims{}), lse(DType::kF32, Dims{1});
  const Buffer masked(DType::kF32, Tensor({1, 3}, {-kInfinity, 1, -kInfinity}));
  CrossEntropy(masked, Ids(targets), 0, {1}, loss, count, lse);
  EXPECT_FLOAT_EQ(loss.ToTensor()[0], 0);
  const Buffer large(DType::kF32, Tensor({1, 3}, {3e38, 3e38, -3e38}));
  CrossEntropy(large, Ids(targets), 0, {1}, loss, count, lse);
  EXPECT_TRUE(std::isfinite(loss.ToTensor()[0]));
  const Buffer broken(DType::kF32, Tensor({1, 3}, {1, std::nan(""), 2}));
  CrossEntropy(broken, Ids(targets), 0, {1}, loss, count, lse);
  EXPECT_TRUE(std::isnan(loss.ToTensor()[0]));
}

}  // namespace
}  // namespace tacc::kernels::cpu
