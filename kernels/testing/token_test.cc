// Kernels over tokens, of every device: rotary, embedding, cross-entropy.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/kernels_under_test.h"

// Rotary is called with the namespace: its enums would bring kernels::cpu in as well.
namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
constexpr Buffer::Placement kPlacements[] = {Buffer::Placement::kOffByOne, Buffer::Placement::kAligned};

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
  for (const auto& [d, half] :
       {std::pair<int64_t, int64_t>{8, 4}, {64, 32}, {64, 16}, {24, 8}, {6, 3}, {10, 2}, {1030, 515}}) {
    const std::string kStyles[] = {"half", "interleaved"};
    for (const std::string& style : kStyles) {
      for (DType dtype : kFloats) {
        for (Buffer::Placement place : kPlacements) {
          std::vector<double> inv_freq;
          for (int64_t i = 0; i < half; ++i) inv_freq.push_back(std::pow(10000.0, -static_cast<double>(i) / half));
          const Dims dims{2, 5, 3, d};
          const Tensor x = Rounded(Random(dims, d), dtype);
          const Buffer cos(Wide(dtype), Dims{5, half}, place), sin(Wide(dtype), Dims{5, half}, place);
          const Buffer in(dtype, x, place), y(dtype, dims, place);
          tested.rotary.RopeTable(inv_freq, 1.25, {0, 1, 2, 3, 4}, {}, cos, sin);
          for (int64_t p = 0; p < 5; ++p) {
            EXPECT_NEAR(cos.ToTensor()[p * half + half - 1], 1.25 * std::cos(p * inv_freq[half - 1]), 1e-6);
            EXPECT_NEAR(sin.ToTensor()[p * half], 1.25 * std::sin(static_cast<double>(p)), 1e-6);
          }
          const RotaryStyle kind = style == "half" ? RotaryStyle::kHalf : RotaryStyle::kInterleaved;
          tested.rotary.Rotary(in, cos, sin, kind, RotaryDirection::kForward, y, -1);
          EXPECT_LE(MaxError(y.ToTensor(), reference::Rotary(x, cos.ToTensor(), sin.ToTensor(), style, 1), 1e-1),
                    Tolerance(dtype));
          tested.rotary.Rotary(in, cos, sin, kind, RotaryDirection::kInverse, in, -1);  // in place
          EXPECT_LE(MaxError(in.ToTensor(), reference::Rotary(x, cos.ToTensor(), sin.ToTensor(), style, -1), 1e-1),
                    Tolerance(dtype));
          EXPECT_TRUE(y.GuardsIntact() && in.GuardsIntact() && cos.GuardsIntact() && sin.GuardsIntact());
        }
      }
    }
  }
}

// The first heads of a token become what they become alone, the others stay what they are.
TEST(Rotary, TurnsTheFirstHeadsOnly) {
  constexpr int64_t kHeads = 5;
  for (const auto& [d, half] : {std::pair<int64_t, int64_t>{64, 32}, {64, 16}, {24, 8}, {6, 3}, {10, 2}, {16, 0}}) {
    for (const RotaryStyle style : {RotaryStyle::kHalf, RotaryStyle::kInterleaved}) {
      for (DType dtype : kFloats) {
        for (Buffer::Placement place : kPlacements) {
          for (const int64_t heads : {0, 1, 3, 5}) {
            const Dims dims{2, 5, kHeads, d}, turned_dims{2, 5, heads, d};
            const Tensor x = Rounded(Random(dims, d), dtype);
            const auto first_heads = [&](const Tensor& from) {
              return reference::Gather(from, turned_dims, [](const std::vector<int64_t>& index) { return index; });
            };
            const Buffer cos(Wide(dtype), Random({5, half}, 1), place), sin(Wide(dtype), Random({5, half}, 2), place);
            const Buffer in(dtype, x, place), y(dtype, dims, place), alone(dtype, first_heads(x), place);
            tested.rotary.Rotary(in, cos, sin, style, RotaryDirection::kForward, y, heads);
            tested.rotary.Rotary(in, cos, sin, style, RotaryDirection::kForward, in, heads);  // in place
            tested.rotary.Rotary(alone, cos, sin, style, RotaryDirection::kForward, alone, -1);
            for (const Buffer* got : {&y, &in}) {
              const Tensor values = got->ToTensor();
              EXPECT_TRUE(first_heads(values).values == alone.ToTensor().values) << d << " " << half << " " << heads;
              for (int64_t i = 0; i < x.size(); ++i) {
                if (i / d % kHeads < heads) continue;
                ASSERT_EQ(values[i], x[i]) << d << " " << half << " " << heads;
              }
              EXPECT_TRUE(got->GuardsIntact());
            }
          }
        }
      }
    }
  }
}

// Positions in as many runs as numbers, of documents that start anywhere, with padding behind.
TEST(Rotary, TakesAnyPositions) {
  constexpr int64_t kLength = 300, kGiven = 290, kBatch = 2, kHalf = 3;
  std::vector<int64_t> given;
  for (int64_t s = 0; s < kGiven; ++s) given.push_back(s < 200 ? s * 7919 % 1000 : 5000 + s);
  std::vector<int32_t> starts, got(kBatch * kLength);
  for (int64_t i = 0; i < kBatch * kLength; ++i) starts.push_back(static_cast<int32_t>(i * i % 11));
  const TensorView start_view{starts.data(), DType::kI32, {kBatch, kLength}};
  tested.rotary.Positions(given, start_view, {got.data(), DType::kI32, {kBatch, kLength}});
  const std::vector<double> inv_freq = {1, 0.1, 0.01};
  const Buffer cos(DType::kF32, Dims{kBatch, kLength, kHalf}), sin(DType::kF32, Dims{kBatch, kLength, kHalf});
  tested.rotary.RopeTable(inv_freq, 1, given, start_view, cos, sin);
  for (int64_t i = 0; i < kBatch * kLength; ++i) {
    const int64_t s = i % kLength, position = (s < kGiven ? given[s] : 0) - starts[i];
    ASSERT_EQ(got[i], position) << i;
    for (int64_t j = 0; j < kHalf; ++j) {
      const float angle = static_cast<float>(position) * static_cast<float>(inv_freq[j]);
      ASSERT_NEAR(cos.ToTensor()[i * kHalf + j], std::cos(static_cast<double>(angle)), 1e-6);
      ASSERT_NEAR(sin.ToTensor()[i * kHalf + j], std::sin(static_cast<double>(angle)), 1e-6);
    }
  }
  std::vector<int32_t> plain(kLength);
  tested.rotary.Positions(given, {}, {plain.data(), DType::kI32, {kLength}});
  for (int64_t s = 0; s < kLength; ++s) ASSERT_EQ(plain[s], s < kGiven ? given[s] : 0);

  const Tensor x = Random({kBatch, kLength, 2, 8}, 1);
  const Buffer in(DType::kF32, x), y(DType::kF32, Dims{kBatch, kLength, 2, 8});
  tested.rotary.Rotary(in, cos, sin, RotaryStyle::kHalf, RotaryDirection::kForward, y, -1);
  for (int64_t b = 0; b < kBatch; ++b) {
    const auto part = [&](const Tensor& t, const Dims& dims) {
      const auto first = t.values.begin() + b * dims.Product();
      return Tensor(dims, std::vector<double>(first, first + dims.Product()));
    };
    const Dims table{kLength, kHalf}, row{1, kLength, 2, 8};
    EXPECT_LE(MaxError(part(y.ToTensor(), row),
                       reference::Rotary(part(in.ToTensor(), row), part(cos.ToTensor(), table),
                                         part(sin.ToTensor(), table), "half", 1),
                       1e-1),
              Tolerance(DType::kF32));
  }
}

TEST(Embedding, LooksUpAndScattersWithAnOffset) {
  std::vector<int32_t> ids = {7, 3, 3, 11, 4, 3, 0, 5};
  for (int64_t n : {1, 5, 200, 700}) {
    for (DType dtype : kFloats) {
      for (Buffer::Placement place : kPlacements) {
        const Tensor table = Rounded(Random({4, n}, 1), dtype), dy = Rounded(Random({8, n}, 2), dtype);
        const Buffer t(dtype, table, place), y(DType::kF32, Dims{8, n}, place), same(dtype, Dims{8, n}, place);
        tested.embedding.Embedding(t, Ids(ids), 3, y);
        EXPECT_LE(MaxError(y.ToTensor(), reference::Embedding(table, ids, 3), 1), 1e-7);
        tested.embedding.Embedding(t, Ids(ids), 3, same);
        EXPECT_EQ(same.ToTensor().values, reference::Embedding(table, ids, 3).values);
        const Buffer d(dtype, dy, place), dtable(Wide(dtype), Dims{4, n}, place);
        tested.embedding.EmbeddingGrad(d, Ids(ids), 3, dtable);
        EXPECT_LE(MaxError(dtable.ToTensor(), reference::EmbeddingGrad(dy, ids, 3, {4, n}), 1e-1), 1e-6);
        EXPECT_TRUE(y.GuardsIntact() && same.GuardsIntact() && dtable.GuardsIntact());
      }
    }
  }
}

// One id is most of the tokens, others are rare or missing, and ids need two digits.
TEST(Embedding, GradientOfManyTokens) {
  constexpr int64_t kTokens = 1111, kRows = 700, kN = 8;
  std::vector<int32_t> ids;
  uint32_t state = 1;
  for (int64_t i = 0; i < kTokens; ++i) {
    state = state * 1664525 + 1013904223;
    ids.push_back(state >> 30 == 0 ? static_cast<int32_t>((state >> 4) % (kRows + 100)) : 450);
  }
  const Tensor dy = Rounded(Random({kTokens, kN}, 2), DType::kBF16);
  const Buffer d(DType::kBF16, dy, Buffer::Placement::kAligned);
  const Buffer dtable(DType::kF32, Dims{kRows, kN}, Buffer::Placement::kAligned), again(DType::kF32, Dims{kRows, kN});
  tested.embedding.EmbeddingGrad(d, Ids(ids), 50, dtable);
  EXPECT_LE(MaxError(dtable.ToTensor(), reference::EmbeddingGrad(dy, ids, 50, {kRows, kN}), 1), 1e-5);
  tested.embedding.EmbeddingGrad(d, Ids(ids), 50, again);
  EXPECT_EQ(dtable.ToTensor().values, again.ToTensor().values);
}

TEST(CrossEntropy, MatchesTheReference) {
  for (int64_t v : {1, 3, 511, 1025, 5000}) {
    for (DType dtype : kFloats) {
      for (const auto& [offset, place] :
           {std::pair<int64_t, Buffer::Placement>{0, kPlacements[0]}, {2, kPlacements[0]}, {2, kPlacements[1]}}) {
        std::vector<int32_t> targets = {0, -1, static_cast<int32_t>(v - 1), 2, -100};
        const Tensor logits = Rounded(Random({5, v}, v, 20), dtype);
        const auto want = reference::CrossEntropy(logits, targets, offset);
        const Buffer x(dtype, logits, place), loss(Wide(dtype), Dims{}), count(Wide(dtype), Dims{}),
            lse(Wide(dtype), Dims{5});
        tested.cross_entropy.CrossEntropy(x, Ids(targets), offset, {5}, loss, count, lse);
        EXPECT_NEAR(loss.ToTensor()[0], want.loss, 2e-5 * (1 + std::fabs(want.loss)));
        EXPECT_EQ(count.ToTensor()[0], 3);
        EXPECT_LE(MaxError(lse.ToTensor(), want.lse, 1), 1e-6);
        const Buffer dloss(DType::kF32, Tensor(Dims{}, {0.5})), dx(dtype, Dims{5, v}, place);
        const Tensor gradient = reference::CrossEntropyGrad(logits, targets, want.lse, 0.5, offset);
        tested.cross_entropy.CrossEntropyGrad(x, Ids(targets), lse, dloss, offset, {5}, dx);
        EXPECT_LE(MaxError(dx.ToTensor(), gradient, 1e-2), 10 * Tolerance(dtype)) << Name(dtype) << " v " << v;
        tested.cross_entropy.CrossEntropyGrad(x, Ids(targets), lse, dloss, offset, {5}, x);  // over the logits
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
  tested.cross_entropy.CrossEntropy(x, ids, 0, {2, 2}, loss, count, lse);
  EXPECT_NEAR(loss.ToTensor()[0], want.loss, 1e-5);
  EXPECT_EQ(count.ToTensor()[0], 4);
  const Buffer dloss(DType::kF32, Tensor(Dims{}, {1.0})), dx(DType::kF32, Dims{2, 3, 4});
  tested.cross_entropy.CrossEntropyGrad(x, ids, lse, dloss, 0, {2, 2}, dx);
  EXPECT_LE(MaxError(dx.ToTensor(), reference::CrossEntropyGrad(logits, existing, want.lse, 1, 0), 1e-1), 1e-5);
}

// A vocabulary in two parts, each with padding behind: logsumexps of pieces, then the sums of each part.
TEST(CrossEntropy, OfPartsOfTheVocabulary) {
  constexpr int64_t kTokens = 6, kValid = 37, kPitch = 41, kPieces = 4;
  std::vector<int32_t> targets = {0, 36, 37, 73, -1, 12};
  for (DType dtype : kFloats) {
    for (Buffer::Placement place : kPlacements) {
      const Tensor whole = Rounded(Random({kTokens, 2 * kValid}, 3, 20), dtype);
      const auto want = reference::CrossEntropy(whole, targets, 0);
      const Buffer lse(Wide(dtype), want.lse);
      double total = 0, counted = 0;
      for (int64_t part = 0; part < 2; ++part) {
        Tensor local(Dims{kTokens, kPitch}, std::vector<double>(kTokens * kPitch, 1000.0));
        for (int64_t i = 0; i < kTokens * kValid; ++i)
          local[i / kValid * kPitch + i % kValid] = whole[i / kValid * 2 * kValid + part * kValid + i % kValid];
        const Buffer x(dtype, local, place), pieces(Wide(dtype), Dims{kTokens, kPieces});
        tested.cross_entropy.LogSumExp(x, kValid, pieces);
        for (int64_t i = 0; i < kTokens * kPieces; ++i) {
          double sum = 0;
          for (int64_t j = i % kPieces * 11; j < std::min<int64_t>(kValid, (i % kPieces + 1) * 11); ++j)
            sum += std::exp(local[i / kPieces * kPitch + j]);
          EXPECT_NEAR(pieces.ToTensor()[i], std::log(sum), 1e-4);
        }
        const Buffer loss(DType::kF64, Dims{}), count(DType::kF32, Dims{});
        tested.cross_entropy.CrossEntropySum(x, Ids(targets), lse, part * kValid, kValid, {5}, loss, count);
        total += loss.ToTensor()[0];
        counted += count.ToTensor()[0];
        EXPECT_TRUE(pieces.GuardsIntact());
      }
      EXPECT_EQ(counted, 4);  // the last token is padding
      EXPECT_NEAR(total, want.loss - (want.lse[5] - whole[5 * 2 * kValid + 12]), 1e-3);
    }
  }
}

TEST(CrossEntropy, TakesMinusInfinityAndShowsNan) {
  std::vector<int32_t> targets = {1};
  const Buffer loss(DType::kF32, Dims{}), count(DType::kF32, Dims{}), lse(DType::kF32, Dims{1});
  const Buffer masked(DType::kF32, Tensor({1, 3}, {-kInfinity, 1, -kInfinity}));
  tested.cross_entropy.CrossEntropy(masked, Ids(targets), 0, {1}, loss, count, lse);
  EXPECT_FLOAT_EQ(loss.ToTensor()[0], 0);
  const Buffer large(DType::kF32, Tensor({1, 3}, {3e38, 3e38, -3e38}));
  tested.cross_entropy.CrossEntropy(large, Ids(targets), 0, {1}, loss, count, lse);
  EXPECT_TRUE(std::isfinite(loss.ToTensor()[0]));
  const Buffer broken(DType::kF32, Tensor({1, 3}, {1, std::nan(""), 2}));
  tested.cross_entropy.CrossEntropy(broken, Ids(targets), 0, {1}, loss, count, lse);
  EXPECT_TRUE(std::isnan(loss.ToTensor()[0]));
}

}  // namespace
}  // namespace tacc::kernels
