// Dropout and random numbers of every device against Philox.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Tensor;

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

TEST(Dropout, FollowsPhiloxAndDoesNotSeeTheSharding) {
  const int64_t n = 1037;
  const double rate = 0.3;
  int64_t step = 12;
  std::vector<int64_t> samples = {4, 5, 900};
  const TensorView step_view{&step, DType::kI64, {}};
  const DropoutParameters parameters{.rate = rate, .key = 17, .seed = 42};
  const Tensor x = Random({3, n}, 1);
  for (const auto& [dtype, placement] : {std::pair<DType, Buffer::Placement>{DType::kF32, Buffer::Placement::kOffByOne},
                                         {DType::kBF16, Buffer::Placement::kOffByOne},
                                         {DType::kBF16, Buffer::Placement::kAligned},
                                         {DType::kF16, Buffer::Placement::kAligned},
                                         {DType::kF32, Buffer::Placement::kAligned},
                                         {DType::kF64, Buffer::Placement::kOffByOne}}) {
    const Buffer in(dtype, x, placement), y(dtype, Dims{3, n}, placement);
    tested.dropout.Dropout(in, step_view, {samples.data(), DType::kI64, {3}}, {}, parameters, y);
    const Tensor values = in.ToTensor(), got = y.ToTensor();
    int64_t kept = 0;
    Tensor want(x.dims);
    for (int64_t row = 0; row < 3; ++row) {
      for (int64_t i = 0; i < n; ++i) {
        const uint32_t counter[4] = {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(samples[row]), 12, 0};
        const uint32_t key[2] = {42, 17};
        const bool keep = reference::Philox(counter, key, i % 4) >= static_cast<uint32_t>(rate * 4294967296.0);
        kept += keep;
        want[row * n + i] = keep ? values[row * n + i] / (1 - rate) : 0;
      }
    }
    EXPECT_LE(MaxError(got, want, 1e-1), Tolerance(dtype));
    EXPECT_NEAR(static_cast<double>(kept) / (3 * n), 1 - rate, 0.03);
    // The third row alone, as another rank would hold it.
    const Buffer row_in(dtype, Tensor({1, n}, std::vector<double>(x.values.begin() + 2 * n, x.values.end())));
    const Buffer row_out(dtype, Dims{1, n});
    tested.dropout.Dropout(row_in, step_view, {&samples[2], DType::kI64, {1}}, {}, parameters, row_out);
    EXPECT_EQ(row_out.ToTensor().values, std::vector<double>(got.values.begin() + 2 * n, got.values.end()));
    // A part of every sample: 17 x 61 elements, of which columns 10 to 40 of rows 3 to 8.
    const Dims sample_dims{17, 61};
    const Tensor wide({3, 17, 61}, x.values);
    const auto cut = [&](const Tensor& from) {
      return reference::Gather(from, {3, 5, 30}, [](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], i[1] + 3, i[2] + 10};
      });
    };
    const Buffer part_in(dtype, cut(wide)), part_out(dtype, Dims{3, 5, 30});
    tested.dropout.Dropout(part_in, step_view, {samples.data(), DType::kI64, {3}}, {sample_dims, {3, 10}}, parameters,
                           part_out);
    EXPECT_EQ(part_out.ToTensor().values, cut(Tensor({3, 17, 61}, got.values)).values);
    // Rows at positions of their own: 2, 3, 11 and 12, and one that is padding.
    const int64_t rows[] = {2, 3, 11, 12, 0};
    const auto pick = [&](const Tensor& from) {
      return reference::Gather(from, {3, 5, 30}, [&](const std::vector<int64_t>& i) {
        return std::vector<int64_t>{i[0], rows[i[1]], i[2] + 10};
      });
    };
    const Buffer rows_in(dtype, pick(wide)), rows_out(dtype, Dims{3, 5, 30});
    tested.dropout.Dropout(rows_in, step_view, {samples.data(), DType::kI64, {3}},
                           {sample_dims, {2, 10}, {2, 3, 11, 12}}, parameters, rows_out);
    const Tensor rows_got = rows_out.ToTensor(), rows_want = pick(Tensor({3, 17, 61}, got.values));
    for (int64_t i = 0; i < rows_got.size(); ++i) {
      if (i / 30 % 5 == 4) continue;
      EXPECT_EQ(rows_got[i], rows_want[i]) << i;
    }
    EXPECT_TRUE(y.GuardsIntact() && part_out.GuardsIntact() && rows_out.GuardsIntact());
  }
}

TEST(Dropout, DropsTheSameOfOneDimAndOfMany) {
  int64_t step = 5;
  std::vector<int64_t> samples = {int64_t{1} << 40, 7};
  const TensorView step_view{&step, DType::kI64, {}}, ids{samples.data(), DType::kI64, {2}};
  const DropoutParameters parameters{.rate = 0.5, .key = 3, .seed = int64_t{9} << 33};
  const Tensor ones(Dims{2, 24 * 16}, std::vector<double>(2 * 24 * 16, 1.0));
  const Buffer flat(DType::kBF16, ones, Buffer::Placement::kAligned), y(DType::kBF16, ones.dims);
  tested.dropout.Dropout(flat, step_view, ids, {}, parameters, y);
  // Packs that lie in one row, and packs across several.
  for (const Dims& dims : {Dims{2, 24, 16}, Dims{2, 4, 6, 16}, Dims{2, 128, 3}, Dims{2, 12, 4, 8}}) {
    const Buffer x(DType::kBF16, Tensor(dims, ones.values), Buffer::Placement::kAligned);
    const Buffer got(DType::kBF16, dims, Buffer::Placement::kAligned);
    tested.dropout.Dropout(x, step_view, ids, {Dims(dims.begin() + 1, dims.end()), {}, {}}, parameters, got);
    EXPECT_EQ(got.ToTensor().values, y.ToTensor().values);
    Dims larger(dims.begin() + 1, dims.end()), offset = larger;
    for (int d = 0; d < larger.rank(); ++d) larger[d] += offset[d] = d + 1;
    const Buffer part(DType::kBF16, dims, Buffer::Placement::kAligned), whole(DType::kBF16, dims);
    tested.dropout.Dropout(x, step_view, ids, {larger, offset, {}}, parameters, part);
    tested.dropout.Dropout(x, step_view, ids, {larger, offset, {}}, parameters, whole);  // not aligned
    EXPECT_EQ(part.ToTensor().values, whole.ToTensor().values);
  }
  const Buffer tokens(DType::kF32, Tensor(Dims{2}, {1.0, 1.0})), kept(DType::kF32, Dims{2});
  tested.dropout.Dropout(tokens, step_view, ids, {}, parameters, kept);
  EXPECT_EQ(kept.ToTensor()[0], y.ToTensor()[0]);
  EXPECT_EQ(kept.ToTensor()[1], y.ToTensor()[24 * 16]);
}

TEST(Dropout, TakesManyPositions) {
  // Every other row of the sample, the way round that none has a neighbour: 128 runs.
  const int64_t num_rows = 128;
  int64_t step = 3, sample = 11;
  const TensorView step_view{&step, DType::kI64, {}}, id{&sample, DType::kI64, {1}};
  const DropoutParameters parameters{.rate = 0.5, .key = 3, .seed = 9};
  const Buffer all(DType::kF32, Tensor(Dims{1, 2 * num_rows, 6}, std::vector<double>(12 * num_rows, 1.0)));
  const Buffer want(DType::kF32, Dims{1, 2 * num_rows, 6}), got(DType::kF32, Dims{1, num_rows, 6});
  const Buffer some(DType::kF32, Tensor(Dims{1, num_rows, 6}, std::vector<double>(6 * num_rows, 1.0)));
  SamplePart part{{2 * num_rows, 6}, {1, 0}, {}};
  for (int64_t row = 0; row < num_rows; ++row) part.positions.push_back(2 * (num_rows - row) - 1);
  tested.dropout.Dropout(all, step_view, id, {}, parameters, want);
  tested.dropout.Dropout(some, step_view, id, part, parameters, got);
  for (int64_t i = 0; i < 6 * num_rows; ++i)
    EXPECT_EQ(got.ToTensor()[i], want.ToTensor()[part.positions[i / 6] * 6 + i % 6]) << i;
}

// What elements [0, n) of a sample draw.
std::vector<double> Drawn(Distribution distribution, int64_t sample, uint32_t step, int64_t n) {
  const auto unit = [&](int64_t i) {
    const uint32_t counter[4] = {static_cast<uint32_t>(i / 4), static_cast<uint32_t>(sample), step, 0};
    const uint32_t key[2] = {42, 17};
    return (reference::Philox(counter, key, i % 4) >> 8) / 16777216.0;
  };
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) {
    const double u = unit(i / 2 * 2), v = unit(i / 2 * 2 + 1);
    const double angle = 2 * 3.14159265358979323846 * v, wave = i % 2 == 0 ? std::cos(angle) : std::sin(angle);
    values.push_back(distribution == Distribution::kUniform ? unit(i) : std::sqrt(-2 * std::log(1 - u)) * wave);
  }
  return values;
}

TEST(Random, FollowsPhiloxAndDoesNotSeeTheSharding) {
  const int64_t n = 17 * 61;
  int64_t step = 12;
  std::vector<int64_t> samples = {4, 5, 900};
  const TensorView step_view{&step, DType::kI64, {}}, ids{samples.data(), DType::kI64, {3}};
  for (const Distribution distribution : {Distribution::kUniform, Distribution::kNormal}) {
    const RandomParameters parameters{.distribution = distribution, .key = 17, .seed = 42};
    std::vector<double> want;
    for (int64_t sample : samples) {
      const std::vector<double> row = Drawn(distribution, sample, 12, n);
      want.insert(want.end(), row.begin(), row.end());
    }
    double sum = 0, squares = 0;
    for (double x : want) sum += x, squares += x * x;
    const bool is_normal = distribution == Distribution::kNormal;
    const double mean = sum / static_cast<double>(3 * n), variance = squares / static_cast<double>(3 * n) - mean * mean;
    EXPECT_NEAR(mean, is_normal ? 0 : 0.5, is_normal ? 0.05 : 0.015);  // three standard deviations, about
    EXPECT_NEAR(variance, is_normal ? 1 : 1.0 / 12, is_normal ? 0.08 : 0.004);
    for (const auto& [dtype, placement] :
         {std::pair<DType, Buffer::Placement>{DType::kF32, Buffer::Placement::kOffByOne},
          {DType::kF32, Buffer::Placement::kAligned},
          {DType::kF64, Buffer::Placement::kOffByOne}}) {
      const Buffer y(dtype, Dims{3, 17, 61}, placement);
      tested.dropout.Random(step_view, ids, {}, parameters, y);
      const Tensor got = y.ToTensor();
      EXPECT_LE(MaxError(got, Tensor({3, 17, 61}, want), 1e-1), Tolerance(dtype));
      // The third row alone, and of every sample columns 10 to 40 of rows 3 to 8.
      const Buffer row(dtype, Dims{1, 17, 61});
      tested.dropout.Random(step_view, {&samples[2], DType::kI64, {1}}, {}, parameters, row);
      EXPECT_EQ(row.ToTensor().values, std::vector<double>(got.values.begin() + 2 * n, got.values.end()));
      const Buffer part(dtype, Dims{3, 5, 30});
      tested.dropout.Random(step_view, ids, {Dims{17, 61}, {3, 10}}, parameters, part);
      // Rows at positions of their own, and one that is padding.
      const Buffer rows(dtype, Dims{3, 5, 30});
      const std::vector<int64_t> positions = {2, 3, 11, 12};
      tested.dropout.Random(step_view, ids, {Dims{17, 61}, {2, 10}, positions}, parameters, rows);
      for (int64_t i = 0; i < 3 * 5 * 30; ++i) {
        const int64_t b = i / 150, r = i / 30 % 5, column = i % 30 + 10;
        EXPECT_EQ(part.ToTensor()[i], got[(b * 17 + r + 3) * 61 + column]);
        if (r < 4) EXPECT_EQ(rows.ToTensor()[i], got[(b * 17 + positions[r]) * 61 + column]);
      }
      EXPECT_TRUE(y.GuardsIntact() && row.GuardsIntact() && part.GuardsIntact() && rows.GuardsIntact());
    }
  }
}

TEST(Philox, MatchesThePublishedVector) {
  // Source: Random123's known answers, philox4x32-10 with zero counter and key.
  const uint32_t counter[4] = {0, 0, 0, 0}, key[2] = {0, 0};
  EXPECT_EQ(reference::Philox(counter, key, 0), 0x6627e8d5u);
  EXPECT_EQ(reference::Philox(counter, key, 3), 0x9b00dbd8u);
}

}  // namespace
}  // namespace tacc::kernels
