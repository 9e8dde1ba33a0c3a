// Mixtures of experts on every device.
#include "kernels/reference/expert.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/reference/buffer.h"
#include "kernels/testing/kernels_under_test.h"

// Functions of enums are called with the namespace: the enums would bring kernels::cpu in as well.
namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};
constexpr Buffer::Placement kPlacements[] = {Buffer::Placement::kOffByOne, Buffer::Placement::kAligned};

DType Wide(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }
// Of a product of a few hundred terms of size 1, rounded to the dtype.
double Tolerance(DType dtype) {
  return dtype == DType::kBF16 ? 1e-2 : dtype == DType::kF16 ? 2e-3 : dtype == DType::kF32 ? 1e-5 : 1e-12;
}

TensorView Ids(std::vector<int32_t>& ids, const Dims& dims) { return {ids.data(), DType::kI32, dims}; }

// Some outside [0, experts), and expert 1 most often, so that it fills several blocks of rows.
std::vector<int32_t> SomeIds(int64_t slots, int32_t experts) {
  std::vector<int32_t> ids;
  uint32_t state = 12345;
  for (int64_t s = 0; s < slots; ++s) {
    state = state * 1664525 + 1013904223;
    ids.push_back((state >> 16) % 3 == 0 ? static_cast<int32_t>((state >> 18) % (experts + 2)) - 1 : 1);
  }
  return ids;
}

TEST(Softmax, MatchesTheReferenceAndItsDerivative) {
  for (int64_t n : {1, 7, 300}) {
    for (DType dtype : kFloats) {
      const Tensor x = Rounded(Random({5, n}, 1, 4), dtype);
      const Buffer in(dtype, x), y(Wide(dtype), Dims{5, n});
      tested.router.Softmax(in, y);
      EXPECT_LE(MaxError(y.ToTensor(), reference::Softmax(x), 1e-3), 1e-5);
      const Tensor dy = Rounded(Random({5, n}, 2), Wide(dtype));
      const Buffer d(Wide(dtype), dy);
      tested.router.SoftmaxGrad(d, y, d);  // in place
      EXPECT_LE(MaxError(d.ToTensor(), reference::SoftmaxGrad(dy, x), 1e-2), 2e-5);
      EXPECT_TRUE(y.GuardsIntact() && d.GuardsIntact());
    }
  }
  const double infinity = std::numeric_limits<double>::infinity();
  const Buffer large(DType::kF32, Tensor(Dims{1, 3}, {-infinity, 1e30, 1e30})), y(DType::kF32, Dims{1, 3});
  tested.router.Softmax(large, y);
  EXPECT_EQ(y.ToTensor().values, (std::vector<double>{0, 0.5, 0.5}));
}

TEST(TopK, TakesTheLargestAndOfEqualOnesTheFirst) {
  const Buffer p(DType::kF32, Tensor(Dims{2, 5}, {0.25, 0.5, 0.0625, 0.5, 0.25, 0, 0, 0, 0, 1}));
  const Buffer weights(DType::kF32, Dims{2, 3});
  std::vector<int32_t> ids(6);
  tested.router.TopK(p, p, {}, TopKWeights::kPlain, weights, Ids(ids, {2, 3}));
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 3, 0, 4, 0, 1}));
  EXPECT_EQ(weights.ToTensor().values, (std::vector<double>{0.5, 0.5, 0.25, 1, 0, 0}));
  tested.router.TopK(p, p, {}, TopKWeights::kNormalized, weights, Ids(ids, {2, 3}));
  EXPECT_LE(MaxError(weights.ToTensor(), Tensor(Dims{2, 3}, {0.4, 0.4, 0.2, 1, 0, 0}), 1), 1e-7);
}

TEST(TopK, IsChosenByOtherNumbersFromTheBestGroups) {
  // Groups of two: their largest numbers are 4, 3, 5, 5, their sums 4, 6, 5, 5.
  const Buffer choice(DType::kF32, Tensor(Dims{1, 8}, {4, 0, 3, 3, 5, 0, 0, 5}));
  const Buffer p(DType::kF32, Tensor(Dims{1, 8}, {1, 2, 3, 4, 5, 6, 7, 8})), weights(DType::kF32, Dims{1, 3});
  std::vector<int32_t> ids(3);
  const TensorView id_view = Ids(ids, {1, 3});
  tested.router.TopK(p, choice, {4, 4, 1}, TopKWeights::kPlain, weights, id_view);
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 7, 0}));
  EXPECT_EQ(weights.ToTensor().values, (std::vector<double>{5, 8, 1}));
  tested.router.TopK(p, choice, {4, 2, 2}, TopKWeights::kPlain, weights, id_view);
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 2, 3}));  // of equal groups the first
  tested.router.TopK(p, choice, {4, 3, 1}, TopKWeights::kNormalized, weights, id_view);
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 7, 0}));
  EXPECT_LE(MaxError(weights.ToTensor(), Tensor(Dims{1, 3}, {5.0 / 14, 8.0 / 14, 1.0 / 14}), 1), 1e-7);
  tested.router.TopK(p, choice, {2, 1, 2}, TopKWeights::kPlain, weights, id_view);  // 7 against 10
  EXPECT_EQ(ids, (std::vector<int32_t>{4, 7, 5}));
}

TEST(TopK, OfRowsThatAreNotNumbersGivesValidIds) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Buffer p(DType::kF32, Tensor(Dims{1, 3}, {nan, nan, nan})), weights(DType::kF32, Dims{1, 2});
  std::vector<int32_t> ids(2);
  tested.router.TopK(p, p, {}, TopKWeights::kPlain, weights, Ids(ids, {1, 2}));
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 1}));
}

TEST(TopK, GradientReachesWhatWasChosen) {
  constexpr int64_t kRows = 5, kN = 9, kK = 3;
  for (TopKWeights kind : {TopKWeights::kPlain, TopKWeights::kNormalized}) {
    Tensor p = Random({kRows, kN}, 1);
    for (double& value : p.values) value = 0.5 + 0.4 * value;
    const Tensor dw = Random({kRows, kK}, 2);
    const Buffer in(DType::kF64, p), d(DType::kF64, dw), weights(DType::kF64, Dims{kRows, kK}),
        dp(DType::kF64, Dims{kRows, kN});
    std::vector<int32_t> ids(kRows * kK);
    tested.router.TopK(in, in, {}, kind, weights, Ids(ids, {kRows, kK}));
    tested.router.TopKGrad(d, in, Ids(ids, {kRows, kK}), kind, dp);
    const auto loss = [&](const Tensor& at) {
      double sum = 0;
      for (int64_t row = 0; row < kRows; ++row) {
        double chosen = 0;
        for (int64_t j = 0; j < kK; ++j) chosen += at[row * kN + ids[row * kK + j]];
        for (int64_t j = 0; j < kK; ++j)
          sum += dw[row * kK + j] * at[row * kN + ids[row * kK + j]] / (kind == TopKWeights::kPlain ? 1 : chosen);
      }
      return sum;
    };
    for (int64_t i = 0; i < p.size(); ++i) {
      Tensor above = p, below = p;
      above[i] += 1e-5;
      below[i] -= 1e-5;
      EXPECT_NEAR(dp.ToTensor()[i], (loss(above) - loss(below)) / 2e-5, 1e-8);
    }
    EXPECT_TRUE(dp.GuardsIntact());
  }
}

// More rows than any device multiplies at a time.
TEST(ExpertMatmul, MatchesTheReferenceInBlocksOfRows) {
  constexpr int64_t kExperts = 4, kSlots = 2;
  for (int64_t tokens : {int64_t{1}, int64_t{37}, int64_t{1029}}) {
    for (const auto& [n, m, place] : {std::tuple<int64_t, int64_t, Buffer::Placement>{5, 3, kPlacements[0]},
                                      {64, 33, kPlacements[1]},
                                      {48, 72, kPlacements[1]},
                                      {8, 296, kPlacements[1]}}) {
      for (DType dtype : kFloats) {
        std::vector<int32_t> ids = SomeIds(tokens * kSlots, kExperts), shifted = ids;
        for (int32_t& id : shifted) id += 7;
        const TensorView id_view = Ids(ids, {tokens, kSlots}), shifted_view = Ids(shifted, {tokens, kSlots});
        const Tensor x = Rounded(Random({tokens, n}, 1), dtype), w = Rounded(Random({kExperts, m, n}, 2), dtype);
        Tensor transposed(Dims{kExperts, n, m});
        for (int64_t e = 0; e < kExperts; ++e) {
          for (int64_t i = 0; i < m * n; ++i) transposed[e * m * n + i % n * m + i / n] = w[e * m * n + i];
        }
        const Tensor want = reference::ExpertProducts(x, ids, w);
        const Buffer x_in(dtype, x, place), w_in(dtype, w, place), t_in(dtype, transposed, place);
        const Buffer y(dtype, Dims{tokens, kSlots, m}, place), sum(Wide(dtype), Dims{tokens, m}, place);
        tested.expert.ExpertMatmul(x_in, id_view, w_in, ExpertWeights::kPlain, 0, y);
        EXPECT_LE(MaxError(y.ToTensor(), want, 1), Tolerance(dtype));
        tested.expert.ExpertMatmul(x_in, shifted_view, t_in, ExpertWeights::kTransposed, 7, sum);
        // Each summand, of size 4 or so, is rounded to the dtype; they may cancel.
        EXPECT_LE(MaxError(sum.ToTensor(), reference::SumSlots(want), 4), Tolerance(dtype));
        EXPECT_TRUE(y.GuardsIntact() && sum.GuardsIntact());

        const Tensor dy = Rounded(Random({tokens, kSlots, m}, 3), dtype);
        const Buffer dy_in(dtype, dy, place), dw(Wide(dtype), Dims{kExperts, m, n}, place);
        tested.expert.ExpertMatmulGrad(dy_in, x_in, id_view, 0, dw);
        const double scale = std::max<double>(1, std::sqrt(tokens));  // of a sum over the tokens
        EXPECT_LE(MaxError(dw.ToTensor(), reference::ExpertOuterProducts(dy, x, ids, kExperts), scale),
                  Tolerance(dtype));
        EXPECT_TRUE(dw.GuardsIntact());

        // A row a slot: as tokens with one expert each.
        const Tensor flat(Dims{tokens * kSlots, m}, dy.values);
        const Buffer dx(dtype, Dims{tokens, kSlots, n}, place);
        tested.expert.ExpertMatmul(dy_in, id_view, w_in, ExpertWeights::kTransposed, 0, dx);
        const Tensor want_dx = reference::ExpertProducts(flat, ids, transposed);
        EXPECT_LE(MaxError(dx.ToTensor(), Tensor(Dims{tokens, kSlots, n}, want_dx.values), std::sqrt(m)),
                  Tolerance(dtype));
      }
    }
  }
}

TEST(ExpertMatmul, SumsAreTheSameForAnyNumberOfThreads) {
  constexpr int64_t kTokens = 300, kSlots = 3, kExperts = 5, kN = 9, kM = 200;
  std::vector<int32_t> ids = SomeIds(kTokens * kSlots, kExperts);  // a token has an expert more than once
  const Buffer x(DType::kF32, Random({kTokens, kN}, 1)), w(DType::kF32, Random({kExperts, kM, kN}, 2));
  const int threads_before = omp_get_max_threads();
  std::vector<double> first;
  for (int threads : {1, 2, 4}) {
    omp_set_num_threads(threads);
    const Buffer y(DType::kF32, Dims{kTokens, kM});
    tested.expert.ExpertMatmul(x, Ids(ids, {kTokens, kSlots}), w, ExpertWeights::kPlain, 0, y);
    if (first.empty()) first = y.ToTensor().values;
    EXPECT_EQ(y.ToTensor().values, first);
  }
  omp_set_num_threads(threads_before);
}

TEST(ExpertCounts, LeavesOutWhatIsNoExpert) {
  std::vector<int32_t> ids = {2, 0, 2, -1, 7, 2};
  const Buffer counts(DType::kF32, Dims{4});
  tested.router.ExpertCounts(Ids(ids, {3, 2}), counts);
  EXPECT_EQ(counts.ToTensor().values, (std::vector<double>{1, 0, 3, 0}));
  const Buffer of_rows(DType::kF32, Dims{3, 4});
  tested.router.ExpertCounts(Ids(ids, {3, 2}), of_rows);
  EXPECT_EQ(of_rows.ToTensor().values, (std::vector<double>{1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0}));
}

TEST(Dispatch, FillsBuffersInTheOrderOfTheTokensAndCountsWhatDoesNotFit) {
  // One sample of four tokens with two slots, two groups; experts 0, 1 to the first destination and 2, 3 to the second.
  std::vector<int32_t> ids = {0, 2, 1, 0, 3, 2, 3, 9}, places(8), row_ids(8);
  const Buffer overflow(DType::kF32, Dims{});
  const TensorView id_view = Ids(ids, {1, 4, 2}), place_view = Ids(places, {1, 4, 2});
  tested.dispatch.DispatchSlots(id_view, 4, place_view, Ids(row_ids, {1, 2, 2, 2}), overflow);
  EXPECT_EQ(places, (std::vector<int32_t>{0, 2, 1, -1, 2, 3, -1, -1}));
  EXPECT_EQ(row_ids, (std::vector<int32_t>{0, 1, 2, -1, -1, -1, 3, 2}));
  EXPECT_EQ(overflow.ToTensor()[0], 2);  // 9 is no expert

  const Buffer x(DType::kF32, Tensor(Dims{1, 4, 1}, {10, 20, 30, 40})), rows(DType::kF32, Dims{1, 2, 2, 2, 1});
  tested.dispatch.Dispatch(x, place_view, rows);
  EXPECT_EQ(rows.ToTensor().values, (std::vector<double>{10, 20, 10, 0, 0, 0, 30, 30}));
  const Buffer slots(DType::kF32, Dims{1, 4, 2, 1}), sums(DType::kF32, Dims{1, 4, 1}),
      again(DType::kF32, rows.ToTensor());
  tested.dispatch.Combine(rows, place_view, slots);
  EXPECT_EQ(slots.ToTensor().values, (std::vector<double>{10, 10, 20, 0, 30, 30, 0, 0}));
  tested.dispatch.Combine(rows, place_view, sums);
  EXPECT_EQ(sums.ToTensor().values, (std::vector<double>{20, 20, 60, 0}));
  tested.dispatch.Dispatch(slots, place_view, rows);
  EXPECT_EQ(rows.ToTensor().values, again.ToTensor().values);
}

TEST(Dispatch, OfManySlotsKeepsTheirOrder) {
  constexpr int64_t kTokens = 600, kSlots = 2, kGroups = 2, kDestinations = 4, kExperts = 8, kCapacity = 100, kN = 16;
  const std::vector<int32_t> ids = SomeIds(kTokens * kSlots, kExperts);
  std::vector<int32_t> places(ids.size()), row_ids(kGroups * kDestinations * kCapacity), wanted_places(ids.size(), -1),
      wanted_ids(row_ids.size(), -1), copy = ids;
  double dropped = 0;
  std::vector<int32_t> used(kGroups * kDestinations);
  for (size_t s = 0; s < ids.size(); ++s) {
    if (ids[s] < 0 || ids[s] >= kExperts) continue;
    const size_t d = ids[s] / 2, buffer = s / (ids.size() / kGroups) * kDestinations + d;
    if (used[buffer] == kCapacity) {
      ++dropped;
      continue;
    }
    wanted_ids[buffer * kCapacity + used[buffer]] = ids[s];
    wanted_places[s] = static_cast<int32_t>(d * kCapacity + used[buffer]++);
  }
  const Buffer overflow(DType::kF32, Dims{});
  const TensorView place_view = Ids(places, {1, kTokens, kSlots});
  tested.dispatch.DispatchSlots(Ids(copy, {1, kTokens, kSlots}), kExperts, place_view,
                                Ids(row_ids, {1, kGroups, kDestinations, kCapacity}), overflow);
  EXPECT_EQ(places, wanted_places);
  EXPECT_EQ(row_ids, wanted_ids);
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(overflow.ToTensor()[0], dropped);
  for (DType dtype : kFloats) {
    for (Buffer::Placement place : kPlacements) {
      const Tensor x = Rounded(Random({1, kTokens, kN}, 1), dtype);
      const Buffer in(dtype, x, place), rows(dtype, Dims{1, kGroups, kDestinations, kCapacity, kN}, place),
          sums(Wide(dtype), Dims{1, kTokens, kN}, place);
      tested.dispatch.Dispatch(in, place_view, rows);
      tested.dispatch.Combine(rows, place_view, sums);
      Tensor want = x;
      for (int64_t i = 0; i < want.size(); ++i) {
        const int64_t slot = i / kN * kSlots;
        want[i] *= (places[slot] >= 0) + (places[slot + 1] >= 0);
      }
      EXPECT_LE(MaxError(sums.ToTensor(), want, 1e-2), 1e-6);
      EXPECT_TRUE(rows.GuardsIntact() && sums.GuardsIntact());
    }
  }
}

TEST(Rows, AreScaledAndMultiplied) {
  for (const auto& [n, place] : {std::pair<int64_t, Buffer::Placement>{1, kPlacements[0]},
                                 {5, kPlacements[1]},
                                 {1304, kPlacements[0]},
                                 {1304, kPlacements[1]}}) {
    for (DType dtype : kFloats) {
      const Tensor x = Rounded(Random({7, n}, 1), dtype), z = Rounded(Random({7, n}, 2), dtype);
      const Tensor w = Rounded(Random({7}, 3), Wide(dtype));
      Tensor scaled(x.dims), dots(Dims{7});
      for (int64_t i = 0; i < x.size(); ++i) {
        scaled[i] = x[i] * w[i / n];
        dots[i / n] += x[i] * z[i];
      }
      const Buffer in(dtype, x, place), other(dtype, z, place), weights(Wide(dtype), w), dot(Wide(dtype), Dims{7});
      tested.router.DotRows(in, other, dot);
      EXPECT_LE(MaxError(dot.ToTensor(), dots, 1), 1e-5);
      tested.router.MulRows(in, weights, in);  // in place
      EXPECT_LE(MaxError(in.ToTensor(), scaled, 1e-2), Tolerance(dtype));
      EXPECT_TRUE(in.GuardsIntact() && dot.GuardsIntact());
    }
  }
}

}  // namespace
}  // namespace tacc::kernels
