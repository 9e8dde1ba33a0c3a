#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <functional>
#include <limits>

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

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Vectorised paths need aligned arrays; the others are for those that are not.
constexpr Buffer::Placement kPlacements[] = {Buffer::Placement::kOffByOne, Buffer::Placement::kAligned};
constexpr DType kFloats[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF64};

// Half a unit in the last place of a result, and a few roundings of the f32 (f64) computation.
double Tolerance(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return 1.0 / 256 + 1e-5;
    case DType::kF16:
      return 1.0 / 2048 + 1e-5;
    case DType::kF32:
      return 2e-6;
    default:
      return 1e-12;
  }
}

struct Case {
  UnaryOp op;
  std::function<double(double)> f;
  double low, high;  // inputs
};

const Case kUnary[] = {
    {UnaryOp::kCast, [](double x) { return x; }, -3, 3},
    {UnaryOp::kNeg, [](double x) { return -x; }, -3, 3},
    {UnaryOp::kExp, [](double x) { return std::exp(x); }, -9, 9},
    {UnaryOp::kLog, [](double x) { return std::log(x); }, 0.01, 9},
    {UnaryOp::kSqrt, [](double x) { return std::sqrt(x); }, 0, 9},
    {UnaryOp::kRsqrt, [](double x) { return 1 / std::sqrt(x); }, 0.01, 9},
    {UnaryOp::kReciprocal, [](double x) { return 1 / x; }, 0.01, 9},
    {UnaryOp::kSin, [](double x) { return std::sin(x); }, -90, 90},
    {UnaryOp::kCos, [](double x) { return std::cos(x); }, -90, 90},
    {UnaryOp::kTanh, [](double x) { return std::tanh(x); }, -6, 6},
    {UnaryOp::kSigmoid, [](double x) { return reference::Sigmoid(x); }, -9, 9},
    {UnaryOp::kRelu, [](double x) { return x > 0 ? x : 0; }, -3, 3},
    {UnaryOp::kSilu, [](double x) { return reference::Silu(x); }, -9, 9},
    {UnaryOp::kSquare, [](double x) { return x * x; }, -3, 3},
    {UnaryOp::kGelu, [](double x) { return reference::Gelu(x); }, -6, 6},
    {UnaryOp::kGeluTanh, [](double x) { return reference::GeluTanh(x); }, -6, 6},
};

Tensor Inputs(const Dims& dims, uint64_t seed, double low, double high, DType dtype) {
  Tensor x = Random(dims, seed);
  for (double& v : x.values) v = low + (v + 1) / 2 * (high - low);
  return Rounded(x, dtype);
}

TEST(Unary, MatchesTheReferenceForEveryDtypeAndSize) {
  for (const Case& c : kUnary) {
    for (DType dtype : kFloats) {
      for (int64_t n : {0, 1, 3, 17, 511, 512, 513, 40001}) {
        const Tensor x = Inputs({n}, n + 1, c.low, c.high, dtype);
        Tensor want(x.dims);
        for (int64_t i = 0; i < n; ++i) want[i] = c.f(x[i]);
        for (Buffer::Placement placement : kPlacements) {
          const Buffer in(dtype, x, placement), out(dtype, Dims{n}, placement);
          tested.unary.Unary(c.op, in, out, {});
          EXPECT_LE(MaxError(out.ToTensor(), want, 1e-1), Tolerance(dtype))
              << "op " << static_cast<int>(c.op) << " " << Name(dtype) << " n " << n;
          EXPECT_TRUE(out.GuardsIntact());
        }
      }
    }
  }
}

TEST(Unary, TakesParameters) {
  const Tensor x = Inputs({1000}, 7, -3, 3, DType::kF32);
  const Buffer in(DType::kF32, x), out(DType::kF32, x.dims);
  tested.unary.Unary(UnaryOp::kScale, in, out, {.p0 = -2.5});
  EXPECT_FLOAT_EQ(out.ToTensor()[3], x[3] * -2.5);
  tested.unary.Unary(UnaryOp::kAddScalar, in, out, {.p0 = 0.25});
  EXPECT_FLOAT_EQ(out.ToTensor()[999], x[999] + 0.25);
  tested.unary.Unary(UnaryOp::kClamp, in, out, {.p0 = -1, .p1 = 0.5});
  for (int64_t i = 0; i < 1000; ++i) EXPECT_FLOAT_EQ(out.ToTensor()[i], std::clamp(x[i], -1.0, 0.5));
}

TEST(Unary, KeepsNanAndInfinity) {
  const Tensor x({6}, {std::nan(""), kInfinity, -kInfinity, 0.0, 200, -200});
  for (DType dtype : kFloats) {
    const Buffer in(dtype, x), out(dtype, x.dims);
    const auto expect = [&](UnaryOp op, std::vector<double> want) {
      tested.unary.Unary(op, in, out, {.p0 = -1, .p1 = 1});
      EXPECT_LE(MaxError(out.ToTensor(), Rounded(Tensor({6}, want), dtype), 1e-300), 0.01)
          << "op " << static_cast<int>(op) << " " << Name(dtype);
    };
    const double nan = std::nan("");
    const bool wide = dtype == DType::kF64;
    expect(UnaryOp::kExp, {nan, kInfinity, 0, 1, wide ? std::exp(200) : kInfinity, wide ? std::exp(-200) : 0});
    expect(UnaryOp::kTanh, {nan, 1, -1, 0, 1, -1});
    expect(UnaryOp::kSigmoid, {nan, 1, 0, 0.5, 1, wide ? std::exp(-200) : 0});
    expect(UnaryOp::kRelu, {nan, kInfinity, 0, 0, 200, 0});
    expect(UnaryOp::kClamp, {nan, 1, -1, 0, 1, -1});
    expect(UnaryOp::kCast, {nan, kInfinity, -kInfinity, 0, 200, -200});
  }
}

TEST(Unary, CastsBetweenAllDtypes) {
  const Tensor x({5}, {0, 1, 2, 100, 3});
  for (DType from : {DType::kBool, DType::kI32, DType::kI64, DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (DType to : {DType::kBool, DType::kI32, DType::kI64, DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
      const Buffer in(from, x), out(to, x.dims);
      tested.unary.Unary(UnaryOp::kCast, in, out, {});
      Tensor want = x;
      if (from == DType::kBool || to == DType::kBool) want.values = {0, 1, 1, 1, 1};
      EXPECT_EQ(out.ToTensor().values, want.values) << Name(from) << " to " << Name(to);
    }
  }
  const Tensor many = Random({1003}, 8);
  for (DType from : kFloats) {
    for (DType to : kFloats) {
      for (Buffer::Placement placement : kPlacements) {
        const Buffer in(from, many, placement), out(to, many.dims, Buffer::Placement::kAligned);
        tested.unary.Unary(UnaryOp::kCast, in, out, {});
        const Tensor want = from == DType::kF64 ? Rounded(in.ToTensor(), DType::kF32) : in.ToTensor();
        EXPECT_EQ(out.ToTensor().values, (to == DType::kF64 ? in.ToTensor() : Rounded(want, to)).values)
            << Name(from) << " to " << Name(to);
        EXPECT_TRUE(out.GuardsIntact());
      }
    }
  }
  const int64_t large = (int64_t{1} << 62) + 1;
  int64_t copy = 0;
  tested.unary.Unary(UnaryOp::kCast, {const_cast<int64_t*>(&large), DType::kI64, {}}, {&copy, DType::kI64, {}}, {});
  EXPECT_EQ(copy, large);
}

TEST(Unary, RoundsHalfFloatsToNearestEven) {
  // Every bf16 and f16 value, the value between each and the next, and the neighbours of that.
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<double> values;
    std::vector<uint16_t> bits;
    for (int b = 0; b < 65536; ++b) bits.push_back(static_cast<uint16_t>(b));
    const Buffer exact(DType::kF32, Dims{65536});
    tested.unary.Unary(UnaryOp::kCast, {bits.data(), dtype, {65536}}, exact, {});
    const Tensor all = exact.ToTensor();
    for (int i = 0; i + 1 < 65536; ++i) {
      values.push_back(all[i]);
      if (!std::isfinite(all[i]) || !std::isfinite(all[i + 1])) continue;
      const float middle = static_cast<float>((all[i] + all[i + 1]) / 2);
      values.insert(values.end(), {middle, std::nextafter(middle, 1e38f), std::nextafter(middle, -1e38f)});
    }
    const Tensor x({static_cast<int64_t>(values.size())}, values);
    for (Buffer::Placement placement : kPlacements) {
      const Buffer in(DType::kF32, x, placement), out(dtype, x.dims, placement);
      tested.unary.Unary(UnaryOp::kCast, in, out, {});
      EXPECT_EQ(MaxError(out.ToTensor(), Rounded(Rounded(x, DType::kF32), dtype), 1e-300), 0) << Name(dtype);
    }
  }
}

TEST(UnaryGrad, IsTheDerivative) {
  const std::pair<UnaryGradOp, std::function<double(double)>> cases[] = {
      {UnaryGradOp::kTanh, [](double x) { return std::tanh(x); }},
      {UnaryGradOp::kSigmoid, reference::Sigmoid},
      {UnaryGradOp::kSilu, reference::Silu},
      {UnaryGradOp::kGelu, reference::Gelu},
      {UnaryGradOp::kGeluTanh, reference::GeluTanh},
      {UnaryGradOp::kRelu, [](double x) { return x > 0 ? x : 0; }},
      {UnaryGradOp::kClamp, [](double x) { return std::clamp(x, -1.0, 2.0); }},
  };
  for (const auto& [op, f] : cases) {
    for (DType dtype : kFloats) {
      Tensor x = Inputs({1031}, 5, -4, 4, dtype);
      for (double& v : x.values) v = v == -1 || v == 0 || v == 2 ? 1 : v;  // no derivative at the corners
      const Tensor dy = Rounded(Random({1031}, 6), dtype);
      Tensor want(x.dims);
      for (int64_t i = 0; i < x.size(); ++i) want[i] = dy[i] * reference::Derivative(f, x[i]);
      for (Buffer::Placement placement : kPlacements) {
        const Buffer in(dtype, x, placement), d(dtype, dy, placement), out(dtype, x.dims, placement);
        tested.unary.UnaryGrad(op, in, d, out, {.p0 = -1, .p1 = 2});
        EXPECT_LE(MaxError(out.ToTensor(), want, 1e-1), dtype == DType::kF64 ? 1e-8 : 2 * Tolerance(dtype))
            << "op " << static_cast<int>(op) << " " << Name(dtype);
        EXPECT_TRUE(out.GuardsIntact());
      }
    }
  }
}

TEST(UnaryGrad, ClampsBoundsAreThoseOfTheDtype) {
  const Tensor x({4}, {-0.4, 0.4, 0.5, 0.0}), dy({4}, {1, 2, 4, 8});
  for (DType dtype : kFloats) {
    const Buffer in(dtype, x), d(dtype, dy), out(dtype, x.dims);
    const double bound = dtype == DType::kF32 ? static_cast<double>(0.4f) : 0.4;
    tested.unary.UnaryGrad(UnaryGradOp::kClamp, in, d, out, {.p0 = -bound, .p1 = bound});
    EXPECT_EQ(MaxError(out.ToTensor(), Tensor({4}, {1, 2, 0, 8}), 1e-300), 0) << Name(dtype);
  }
}

TEST(Binary, BroadcastsTheTrailingDims) {
  const std::pair<BinaryOp, std::function<double(double, double)>> cases[] = {
      {BinaryOp::kAdd, [](double a, double b) { return a + b; }},
      {BinaryOp::kSub, [](double a, double b) { return a - b; }},
      {BinaryOp::kMul, [](double a, double b) { return a * b; }},
      {BinaryOp::kDiv, [](double a, double b) { return a / b; }},
      {BinaryOp::kMaximum, [](double a, double b) { return std::max(a, b); }},
      {BinaryOp::kMinimum, [](double a, double b) { return std::min(a, b); }},
  };
  // Periods that are multiples of a pack's width, and others.
  const std::pair<Dims, Dims> shapes[] = {{{7, 5, 33}, {7, 5, 33}}, {{7, 5, 33}, {5, 33}}, {{7, 5, 33}, {33}},
                                          {{7, 5, 33}, {}},         {{3, 2, 24}, {2, 24}}, {{3, 24}, {24}},
                                          {{3, 2, 12}, {12}},       {{5, 3}, {3}}};
  for (const auto& [op, f] : cases) {
    for (DType a_type : kFloats) {
      for (DType b_type : kFloats) {
        const DType y_type = a_type == DType::kF64 || b_type == DType::kF64 ? DType::kF64 : a_type;
        for (const auto& [a_dims, b_dims] : shapes) {
          const Tensor a = Rounded(Random(a_dims, 3), a_type);
          Tensor b = Rounded(Random(b_dims, 4), b_type);
          for (double& v : b.values) v += v >= 0 ? 1 : -1;
          b = Rounded(b, b_type);
          Tensor want(a.dims);
          for (int64_t i = 0; i < a.size(); ++i) want[i] = f(a[i], b[i % b.size()]);
          for (Buffer::Placement left_at : kPlacements) {
            for (Buffer::Placement right_at : kPlacements) {
              const Buffer left(a_type, a, left_at), right(b_type, b, right_at), out(y_type, a.dims, left_at);
              tested.pointwise.Binary(op, left, right, out);
              EXPECT_LE(MaxError(out.ToTensor(), want, 1e-1), Tolerance(y_type));
              EXPECT_TRUE(out.GuardsIntact());
            }
          }
        }
      }
    }
  }
}

TEST(Binary, IntegersAreExact) {
  const int64_t big = int64_t{1} << 60;
  int64_t a[3] = {big, -5, 7}, one = 1, y[3];
  tested.pointwise.Binary(BinaryOp::kAdd, {a, DType::kI64, {3}}, {&one, DType::kI64, {}}, {y, DType::kI64, {3}});
  EXPECT_EQ(y[0], big + 1);
  EXPECT_EQ(y[1], -4);
}

TEST(Swiglu, MatchesTheReference) {
  for (DType dtype : kFloats) {
    const Tensor gate = Inputs({3, 701}, 1, -6, 6, dtype), up = Inputs({3, 701}, 2, -2, 2, dtype);
    const Tensor dy = Inputs({3, 701}, 3, -2, 2, dtype);
    Tensor want(gate.dims), want_gate(gate.dims), want_up(gate.dims);
    for (int64_t i = 0; i < gate.size(); ++i) {
      const double s = reference::Sigmoid(gate[i]);
      want[i] = reference::Silu(gate[i]) * up[i];
      want_gate[i] = dy[i] * up[i] * s * (1 + gate[i] * (1 - s));
      want_up[i] = dy[i] * reference::Silu(gate[i]);
    }
    for (Buffer::Placement placement : kPlacements) {
      const Buffer g(dtype, gate, placement), u(dtype, up, placement), d(dtype, dy, placement);
      const Buffer y(dtype, gate.dims, placement), dg(dtype, gate.dims, placement);
      tested.pointwise.Swiglu(g, u, y);
      EXPECT_LE(MaxError(y.ToTensor(), want, 1e-1), Tolerance(dtype));
      tested.pointwise.SwigluGrad(g, u, d, dg, u);  // dup over up
      EXPECT_LE(MaxError(dg.ToTensor(), want_gate, 1e-1), 2 * Tolerance(dtype));
      EXPECT_LE(MaxError(u.ToTensor(), want_up, 1e-1), 2 * Tolerance(dtype));
      EXPECT_TRUE(y.GuardsIntact() && dg.GuardsIntact() && u.GuardsIntact());
    }
  }
}

TEST(Swiglu, JoinedHasTheSameBits) {
  for (DType dtype : kFloats) {
    for (const auto& [rows, width] : {std::pair<int64_t, int64_t>{3, 701}, {5, 64}, {2, 20}, {40, 1}}) {
      const Tensor gate = Inputs({rows, width}, 1, -6, 6, dtype), up = Inputs({rows, width}, 2, -2, 2, dtype);
      const Tensor dy = Inputs({rows, width}, 3, -2, 2, dtype);
      const auto join = [&](const Tensor& a, const Tensor& b) {
        Tensor x({rows, 2 * width});
        for (int64_t i = 0; i < a.size(); ++i) {
          const int64_t at = i / width * 2 * width + i % width;
          x[at] = a[i];
          x[at + width] = b[i];
        }
        return x;
      };
      for (Buffer::Placement placement : kPlacements) {
        const Buffer g(dtype, gate, placement), u(dtype, up, placement), d(dtype, dy, placement);
        const Buffer y(dtype, gate.dims, placement), joined_y(dtype, gate.dims, placement);
        const Buffer x(dtype, join(gate, up), placement), dx(dtype, Dims{rows, 2 * width}, placement);
        tested.pointwise.Swiglu(g, u, y);
        tested.pointwise.SwigluJoined(x, joined_y);
        EXPECT_EQ(joined_y.ToTensor().values, y.ToTensor().values);
        tested.pointwise.SwigluGrad(g, u, d, g, u);
        tested.pointwise.SwigluJoinedGrad(x, d, dx);
        EXPECT_EQ(dx.ToTensor().values, join(g.ToTensor(), u.ToTensor()).values);
        tested.pointwise.SwigluJoinedGrad(x, d, x);
        EXPECT_EQ(x.ToTensor().values, dx.ToTensor().values);
        EXPECT_TRUE(joined_y.GuardsIntact() && dx.GuardsIntact() && x.GuardsIntact());
      }
    }
  }
}

// A compiler may take one for the other.
TEST(Swiglu, IsTheProductOfASiluToTheBitInF32) {
  const int64_t n = 40001;
  const Buffer gate(DType::kF32, Inputs({n}, 1, -90, 90, DType::kF32)), up(DType::kF32, Random({n}, 2));
  const Buffer activated(DType::kF32, Dims{n}), product(DType::kF32, Dims{n}), joint(DType::kF32, Dims{n});
  tested.unary.Unary(UnaryOp::kSilu, gate, activated, {});
  tested.pointwise.Binary(BinaryOp::kMul, activated, up, product);
  tested.pointwise.Swiglu(gate, up, joint);
  EXPECT_EQ(joint.ToTensor().values, product.ToTensor().values);
}

TEST(Select, ChoosesByTheScalar) {
  for (DType dtype : {DType::kBool, DType::kBF16, DType::kF32, DType::kI64}) {
    for (int64_t n : {0, 5, 16}) {
      for (Buffer::Placement placement : kPlacements) {
        const Buffer a(dtype, Random({n}, 1, 9), placement), b(dtype, Random({n}, 2, 9), placement);
        const Buffer y(dtype, Dims{n}, placement);
        const Buffer yes(DType::kF32, Tensor(Dims{}, {2.0})), no(DType::kBool, Tensor(Dims{}, {0.0}));
        tested.pointwise.Select(yes, a, b, y);
        EXPECT_EQ(y.ToTensor().values, a.ToTensor().values);
        tested.pointwise.Select(no, a, b, y);
        EXPECT_EQ(y.ToTensor().values, b.ToTensor().values);
        tested.pointwise.Select(yes, a, b, b);  // y over b
        EXPECT_EQ(b.ToTensor().values, a.ToTensor().values);
        EXPECT_TRUE(y.GuardsIntact() && b.GuardsIntact());
      }
    }
  }
}

TEST(IsFinite, FindsOneBadElementAnywhere) {
  for (DType dtype : kFloats) {
    for (int64_t n : {0, 1, 603, 70000}) {
      const Tensor x = Random({n}, 1);
      const Buffer y(DType::kF32, Dims{});
      tested.pointwise.IsFinite(Buffer(dtype, x, Buffer::Placement::kAligned), y);
      EXPECT_EQ(y.ToTensor()[0], 1) << Name(dtype) << " " << n;
      for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
        if (at < 0 || at >= n) continue;
        for (double bad : {std::nan(""), kInfinity, -kInfinity}) {
          Tensor broken = x;
          broken[at] = bad;
          for (Buffer::Placement placement : kPlacements) {
            tested.pointwise.IsFinite(Buffer(dtype, broken, placement), y);
            EXPECT_EQ(y.ToTensor()[0], 0);
          }
        }
      }
    }
  }
}

TEST(SumSquares, LeavesOutPaddingAndIgnoresTheNumberOfThreads) {
  const auto test = [](const Dims& dims, const Dims& bounds, DType dtype, Buffer::Placement placement) {
    const Tensor x = Rounded(Random(dims, 11), dtype);
    double want = 0;
    for (int64_t i = 0; i < bounds[0]; ++i) {
      for (int64_t j = 0; j < bounds[1]; ++j) {
        for (int64_t k = 0; k < bounds[2]; ++k) want += std::pow(x[(i * dims[1] + j) * dims[2] + k], 2);
      }
    }
    const Buffer in(dtype, x, placement), one(DType::kF64, Dims{}), many(DType::kF64, Dims{});
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    tested.sum_squares.SumSquares({{in, bounds}}, one);
    omp_set_num_threads(5);
    tested.sum_squares.SumSquares({{in, bounds}}, many);
    omp_set_num_threads(threads);
    EXPECT_NEAR(one.ToTensor()[0], want, 1e-11 * want);
    EXPECT_EQ(one.ToTensor()[0], many.ToTensor()[0]);
  };
  // Rows that can be read in packs, and others.
  for (int64_t row : {333, 336}) {
    const Dims dims{5, 40, row};
    for (const Dims& bounds : {dims, Dims{4, 40, row}, Dims{5, 39, row}, Dims{5, 40, 330}, Dims{5, 33, 328},
                               Dims{3, 7, 1}, Dims{0, 40, row}}) {
      for (DType dtype : kFloats) {
        for (Buffer::Placement placement : kPlacements) test(dims, bounds, dtype, placement);
      }
    }
  }
}

TEST(Fill, SetsEveryElement) {
  for (DType dtype : {DType::kBool, DType::kI32, DType::kI64, DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
    for (Buffer::Placement placement : kPlacements) {
      const Buffer y(dtype, Dims{3, 7}, placement);
      tested.pointwise.Fill(1, y);
      EXPECT_EQ(y.ToTensor().values, std::vector<double>(21, 1.0));
      EXPECT_TRUE(y.GuardsIntact());
    }
  }
  const double beyond_f32 = 16777217;
  for (DType dtype : {DType::kI32, DType::kI64, DType::kF64}) {
    for (Buffer::Placement placement : kPlacements) {
      const Buffer y(dtype, Dims{19}, placement);
      tested.pointwise.Fill(beyond_f32, y);
      EXPECT_EQ(y.ToTensor().values, std::vector<double>(19, beyond_f32)) << Name(dtype);
    }
  }
  const Buffer iota(DType::kI32, Dims{2, 3});
  tested.pointwise.Iota(1, 0, iota);
  EXPECT_EQ(iota.ToTensor().values, (std::vector<double>{0, 1, 2, 0, 1, 2}));
  tested.pointwise.Iota(0, 5, iota);
  EXPECT_EQ(iota.ToTensor().values, (std::vector<double>{5, 5, 5, 6, 6, 6}));
}

}  // namespace
}  // namespace tacc::kernels
