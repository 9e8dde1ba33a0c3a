// Images on every device: convolutions, pools, resampled images, channels. In f64 the kernels are held to the
// interpreter, op by op (worker/rank/program/testing), and here all other types to f64.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/reference/buffer.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

constexpr DType kNarrow[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Of sums of a few hundred products of size 1, rounded to the dtype.
double Tolerance(DType dtype) { return dtype == DType::kBF16 ? 1e-2 : dtype == DType::kF16 ? 2e-3 : 2e-5; }
DType Wide(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

struct ConvolutionCase {
  Dims x, w, y;
  ConvolutionWindow window;
};

const std::vector<ConvolutionCase>& ConvolutionCases() {
  static const std::vector<ConvolutionCase> cases = {
      {{2, 3, 17, 19}, {5, 3, 3, 3}, {2, 5, 17, 19}, {{1, 1}, {1, 1}, {1, 1}}},
      {{3, 3, 33, 31}, {16, 3, 7, 7}, {3, 16, 17, 16}, {{2, 2}, {3, 3}, {1, 1}}},
      {{2, 16, 9, 9}, {24, 16, 1, 1}, {2, 24, 9, 9}, {{1, 1}, {0, 0}, {1, 1}}},  // products of matrices
      {{1, 7, 1, 1}, {3, 7, 1, 1}, {1, 3, 1, 1}, {{1, 1}, {0, 0}, {1, 1}}},
      {{2, 16, 9, 9}, {24, 16, 1, 1}, {2, 24, 5, 5}, {{2, 2}, {0, 0}, {1, 1}}},
      {{2, 12, 15, 10}, {12, 1, 3, 3}, {2, 12, 15, 10}, {{1, 1}, {1, 1}, {1, 1}}},  // each channel alone
      {{2, 8, 13, 11}, {12, 2, 3, 2}, {2, 12, 5, 12}, {{2, 1}, {0, 1}, {2, 1}}},
      {{3, 5, 40}, {6, 5, 4}, {3, 6, 19}, {{2}, {0}, {1}}},
      {{2, 3, 5, 6, 7}, {4, 3, 2, 3, 3}, {2, 4, 4, 6, 3}, {{1, 1, 2}, {0, 1, 0}, {1, 1, 1}}},
      {{0, 3, 6, 5}, {4, 3, 3, 3}, {0, 4, 6, 5}, {{1, 1}, {1, 1}, {1, 1}}},
  };
  return cases;
}

// The same computation in another type, from operands as that type holds them.
using Compute = std::function<void(const std::vector<Buffer>& in, const Buffer& out)>;

void ExpectAsInF64(const std::vector<Tensor>& operands, DType dtype, DType result, const Dims& dims, double scale,
                   const Compute& compute) {
  std::vector<Buffer> narrow, wide;
  for (const Tensor& x : operands) {
    narrow.emplace_back(dtype, x);
    wide.emplace_back(DType::kF64, Rounded(x, dtype));
  }
  const Buffer got(result, dims), want(DType::kF64, dims);
  compute(narrow, got);
  compute(wide, want);
  EXPECT_LE(MaxError(got.ToTensor(), want.ToTensor(), scale), Tolerance(dtype)) << Name(dtype);
  EXPECT_TRUE(got.GuardsIntact());
  for (const Buffer& x : narrow) EXPECT_TRUE(x.GuardsIntact());
}

TEST(Convolution, IsThatOfF64InEveryType) {
  for (const ConvolutionCase& c : ConvolutionCases()) {
    const Tensor x = Random(c.x, 1), w = Random(c.w, 2), dy = Random(c.y, 3), bias = Random({c.y[1]}, 4);
    const Tensor of_x = Random({c.x[1]}, 5);
    const auto terms = static_cast<double>(w.size() / c.w[0]), samples = static_cast<double>(dy.size() / c.y[1]);
    for (DType dtype : kNarrow) {
      ExpectAsInF64({x, w}, dtype, dtype, c.y, std::sqrt(terms), [&](const auto& in, const Buffer& y) {
        tested.convolution.Convolution(in[0], in[1], TensorView(), c.window, y);
      });
      ExpectAsInF64({x, w, bias}, dtype, dtype, c.y, std::sqrt(terms), [&](const auto& in, const Buffer& y) {
        tested.convolution.Convolution(in[0], in[1], in[2], c.window, y);
      });
      ExpectAsInF64({dy, w}, dtype, dtype, c.x, std::sqrt(terms), [&](const auto& in, const Buffer& out) {
        tested.convolution.ConvolutionTransposed(in[0], in[1], TensorView(), c.window, out);
      });
      ExpectAsInF64({dy, w, of_x}, dtype, dtype, c.x, std::sqrt(terms), [&](const auto& in, const Buffer& out) {
        tested.convolution.ConvolutionTransposed(in[0], in[1], in[2], c.window, out);
      });
      for (DType result : {dtype, Wide(dtype)}) {
        ExpectAsInF64({dy, x}, dtype, result, c.w, std::sqrt(samples) + 1, [&](const auto& in, const Buffer& dw) {
          tested.convolution.ConvolutionGradWeight(in[0], in[1], c.window, dw);
        });
      }
    }
  }
}

TEST(MaxPool, IsThatOfF64InEveryType) {
  const PoolWindow window{{3, 2}, {2, 2}, {1, 1}, {1, 1}};
  for (const auto& [x_dims, y_dims] :
       {std::pair<Dims, Dims>{{2, 5, 33, 30}, {2, 5, 17, 16}}, {{0, 5, 3, 4}, {0, 5, 2, 3}}}) {
    for (DType dtype : kNarrow) {
      const Tensor x = Rounded(Random(x_dims, 1), dtype), dy = Rounded(Random(y_dims, 2), dtype);
      const Buffer in(dtype, x), in64(DType::kF64, x), y(dtype, y_dims), y64(DType::kF64, y_dims);
      const Buffer indices(DType::kI32, y_dims), indices64(DType::kI32, y_dims);
      tested.pool.MaxPool(in, window, y, indices);
      tested.pool.MaxPool(in64, window, y64, indices64);
      EXPECT_EQ(y.ToTensor().values, y64.ToTensor().values);
      EXPECT_EQ(indices.ToTensor().values, indices64.ToTensor().values);
      const Buffer d(dtype, dy), d64(DType::kF64, dy), dx(dtype, x_dims), dx64(DType::kF64, x_dims);
      tested.pool.MaxPoolGrad(d, indices, window, dx);
      tested.pool.MaxPoolGrad(d64, indices, window, dx64);
      EXPECT_LE(MaxError(dx.ToTensor(), dx64.ToTensor(), 1), Tolerance(dtype));
      EXPECT_TRUE(y.GuardsIntact() && indices.GuardsIntact() && dx.GuardsIntact());
    }
  }
}

TEST(MaxPool, ChoosesTheFirstOfEqualOnesAndWhatIsNoNumber) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Buffer x(DType::kF32, Tensor(Dims{1, 2, 4}, {7, 7, 3, kNan, -infinity, -infinity, 1, 2}));
  const Buffer y(DType::kF32, Dims{1, 2, 2}), indices(DType::kI32, Dims{1, 2, 2}), dx(DType::kF32, Dims{1, 2, 4});
  const PoolWindow window{{2}, {2}, {0}, {1}};
  tested.pool.MaxPool(x, window, y, indices);
  EXPECT_EQ(indices.ToTensor().values, (std::vector<double>{0, 3, 0, 3}));
  EXPECT_TRUE(std::isnan(y.ToTensor()[1]));
  EXPECT_EQ(y.ToTensor()[2], -infinity);
  const Buffer dy(DType::kF32, Tensor(Dims{1, 2, 2}, {1, 2, 3, 4}));
  tested.pool.MaxPoolGrad(dy, indices, window, dx);
  EXPECT_EQ(dx.ToTensor().values, (std::vector<double>{1, 0, 0, 2, 3, 0, 0, 4}));
}

std::vector<ResampleGrid> Grids() {
  std::vector<ResampleGrid> grids;
  for (Resampling kind : {Resampling::kWindows, Resampling::kAdaptive, Resampling::kNearest, Resampling::kNearestExact,
                          Resampling::kLinear, Resampling::kCubic}) {
    for (bool aligned : {false, true}) {
      ResampleGrid grid;
      grid.dims[1] = {.kind = kind,
                      .in = 13,
                      .out = 7,
                      .kernel = 3,
                      .stride = 2,
                      .padding = 1,
                      .counts_padding = aligned,
                      .aligns_corners = aligned,
                      .scale = aligned ? 2.0 : 13.0 / 7};
      grid.dims[2] = {.kind = kind,
                      .in = 9,
                      .out = 5,
                      .kernel = 2,
                      .stride = 2,
                      .padding = 0,
                      .counts_padding = true,
                      .aligns_corners = aligned,
                      .scale = aligned ? 2.0 : 9.0 / 5};
      if (kind == Resampling::kWindows) grid.dims[2].out = 4, grid.factor = 0.75;
      grids.push_back(grid);
      if (kind == Resampling::kWindows || kind == Resampling::kAdaptive) continue;
      grid.dims[1].out = 31;  // larger
      grid.dims[1].scale = aligned ? 12.0 / 30 : 13.0 / 31;
      grids.push_back(grid);
    }
  }
  return grids;
}

TEST(Resample, IsThatOfF64InEveryType) {
  for (const ResampleGrid& grid : Grids()) {
    for (int64_t n : {0, 3}) {
      const Dims image{n, 2, grid.dims[1].in, grid.dims[2].in}, resampled{n, 2, grid.dims[1].out, grid.dims[2].out};
      for (DType dtype : kNarrow) {
        ExpectAsInF64({Random(image, 1)}, dtype, dtype, resampled, 1,
                      [&](const auto& in, const Buffer& y) { tested.resample.Resample(in[0], grid, y); });
        ExpectAsInF64({Random(resampled, 1)}, dtype, dtype, image, 1,
                      [&](const auto& in, const Buffer& dx) { tested.resample.ResampleGrad(in[0], grid, dx); });
      }
    }
  }
}

// The gradient is the transposed: <y, resampled(x)> = <grad(y), x>.
TEST(Resample, GradientReachesAllThatWasRead) {
  for (const ResampleGrid& grid : Grids()) {
    const Dims image{2, 3, grid.dims[1].in, grid.dims[2].in}, resampled{2, 3, grid.dims[1].out, grid.dims[2].out};
    const Tensor x = Random(image, 1), dy = Random(resampled, 2);
    const Buffer in(DType::kF64, x), d(DType::kF64, dy), y(DType::kF64, resampled), dx(DType::kF64, image);
    tested.resample.Resample(in, grid, y);
    tested.resample.ResampleGrad(d, grid, dx);
    double forward = 0, backward = 0;
    for (int64_t i = 0; i < dy.size(); ++i) forward += dy[i] * y.ToTensor()[i];
    for (int64_t i = 0; i < x.size(); ++i) backward += x[i] * dx.ToTensor()[i];
    EXPECT_NEAR(forward, backward, 1e-10);
  }
}

const std::vector<Dims>& ChannelDims() {
  static const std::vector<Dims> dims = {{3, 5, 7, 11}, {4, 130, 1, 1}, {300, 70}, {2, 3, 5000}, {5, 40, 3}, {0, 3, 4}};
  return dims;
}

TEST(ChannelSums, AreThoseOfF64InEveryType) {
  for (const Dims& dims : ChannelDims()) {
    for (DType dtype : kNarrow) {
      const Tensor x = Rounded(Random(dims, 1), dtype), z = Rounded(Random(dims, 2), dtype);
      const Dims channels{dims[1]};
      Tensor sums(channels), products(channels), squares(channels);
      const int64_t spatial = dims.Product(2, dims.rank());
      for (int64_t i = 0; i < x.size(); ++i) {
        const int64_t c = i / spatial % dims[1];
        sums[c] += x[i], products[c] += x[i] * z[i], squares[c] += x[i] * x[i];
      }
      const Buffer in(dtype, x), factor(dtype, z), got(DType::kF64, channels), of_products(DType::kF64, channels);
      tested.channel.ChannelSums(in, factor, got, of_products);
      EXPECT_LE(MaxError(got.ToTensor(), sums, 1), 1e-12);
      EXPECT_LE(MaxError(of_products.ToTensor(), products, 1), 1e-12);
      const Buffer narrow(DType::kF32, channels);
      tested.channel.ChannelSums(in, TensorView(), got, narrow);
      EXPECT_LE(MaxError(narrow.ToTensor(), squares, 1), 1e-6);
      EXPECT_TRUE(got.GuardsIntact() && narrow.GuardsIntact());
    }
  }
}

TEST(ChannelSums, AreTheSameForAnyNumberOfThreads) {
  const int threads_before = omp_get_max_threads();
  for (const Dims& dims : ChannelDims()) {
    const Buffer x(DType::kF32, Random(dims, 1));
    std::vector<double> first;
    for (int threads : {1, 2, 4}) {
      omp_set_num_threads(threads);
      const Buffer sums(DType::kF64, Dims{dims[1]}), squares(DType::kF64, Dims{dims[1]});
      tested.channel.ChannelSums(x, TensorView(), sums, squares);
      if (threads == 1) first = squares.ToTensor().values;
      EXPECT_EQ(squares.ToTensor().values, first);
    }
  }
  omp_set_num_threads(threads_before);
}

TEST(ChannelAffine, IsThatOfF64InEveryType) {
  for (const Dims& dims : ChannelDims()) {
    const Tensor x = Random(dims, 1), z = Random(dims, 2);
    const Buffer a(DType::kF64, Random({dims[1]}, 3)), b(DType::kF32, Random({dims[1]}, 4)),
        offset(DType::kF64, Random({dims[1]}, 5));
    for (DType dtype : kNarrow) {
      ExpectAsInF64({x}, dtype, dtype, dims, 1, [&](const auto& in, const Buffer& y) {
        tested.channel.ChannelAffine(in[0], a, TensorView(), TensorView(), TensorView(), y);
      });
      ExpectAsInF64({x, z}, dtype, dtype, dims, 1, [&](const auto& in, const Buffer& y) {
        tested.channel.ChannelAffine(in[0], a, in[1], b, offset, y);
      });
      const Buffer in(dtype, x), apart(dtype, dims);
      tested.channel.ChannelAffine(in, a, TensorView(), TensorView(), offset, apart);
      tested.channel.ChannelAffine(in, a, TensorView(), TensorView(), offset, in);  // in place
      EXPECT_EQ(in.ToTensor().values, apart.ToTensor().values);
    }
  }
}

TEST(BatchMoments, OfNoVarianceAreNotNegativeAndGoOnWithTheUnbiased) {
  const Dims channels{3};
  const Buffer sums(DType::kF64, Tensor(channels, {3, 0.9, kNan})), squares(DType::kF64, Tensor(channels, {2.9, 3, 1}));
  const Buffer mean(DType::kF64, channels), variance(DType::kF64, channels);
  const Buffer running_mean(DType::kF32, Tensor(channels, {1, 2, 3}));
  const Buffer running_variance(DType::kF32, Tensor(channels, {4, 5, 6}));
  tested.channel.BatchMoments(sums, squares, running_mean, running_variance, {.count = 3, .momentum = 0.25}, mean,
                              variance, running_mean, running_variance);
  EXPECT_LE(MaxError(mean.ToTensor(), Tensor(channels, {1, 0.3, kNan}), 1), 1e-15);
  EXPECT_LE(MaxError(variance.ToTensor(), Tensor(channels, {0, 0.91, kNan}), 1), 1e-15);
  EXPECT_LE(MaxError(running_mean.ToTensor(), Tensor(channels, {1, 1.575, kNan}), 1), 1e-7);
  EXPECT_LE(MaxError(running_variance.ToTensor(), Tensor(channels, {3, 3.75 + 0.25 * 1.365, kNan}), 1), 1e-7);
}

}  // namespace
}  // namespace tacc::kernels
