// Accuracy of the elementary functions, for every instruction set that this processor has.
#include "kernels/cpu/simd/loops.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

namespace tacc::kernels::simd {
namespace {

std::vector<const Loops*> Supported() {
  std::vector<const Loops*> all = {&kBaselineLoops};
  if (__builtin_cpu_supports("x86-64-v3")) all.push_back(&kAvx2Loops);
  if (__builtin_cpu_supports("x86-64-v4")) all.push_back(&kAvx512Loops);
  return all;
}

// Every 997th float, both signs, subnormals and infinities included.
std::vector<float> Floats() {
  std::vector<float> values;
  for (uint32_t bits = 0; bits <= 0x7f800000u; bits += 997) {
    for (uint32_t sign : {0u, 0x80000000u}) {
      const uint32_t word = bits | sign;
      float value;
      std::memcpy(&value, &word, 4);
      values.push_back(value);
    }
  }
  return values;
}

// The distance to `want` in units in the last place of a float near it (of the smallest normal below that).
double UlpError(float got, double want) {
  const float rounded = static_cast<float>(want);
  if (got == rounded || (std::isnan(got) && std::isnan(want))) return 0;
  if (std::isinf(got) || std::isinf(rounded)) return std::fabs(want) > 3.4028e38 && std::isinf(got) ? 0 : INFINITY;
  const int exponent = std::max(want == 0 ? -126 : std::ilogb(want), -126);
  return std::fabs(got - want) / std::ldexp(1.0, exponent - 23);
}

// The largest error of op over all floats for which `counts`.
double LargestError(const Loops& loops, UnaryOp op, const std::function<double(double)>& f,
                    const std::function<bool(double)>& counts) {
  static const std::vector<float> inputs = Floats();
  std::vector<float> outputs(inputs.size());
  loops.unary(op, 0, 0, {inputs.data(), DType::kF32}, {outputs.data(), DType::kF32}, 0, inputs.size());
  double worst = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const double want = f(inputs[i]);
    if (counts(want)) worst = std::max(worst, UlpError(outputs[i], want));
  }
  return worst;
}

TEST(Loops, ElementaryFunctionsAreAccurate) {
  const auto all = [](double) { return true; };
  const auto normal = [](double want) { return std::fabs(want) >= 1.18e-38; };
  const auto above = [](double want) { return !(std::fabs(want) < 2.7e-37); };  // silu is 0 below -88.7
  for (const Loops* loops : Supported()) {
    const double exp = LargestError(*loops, UnaryOp::kExp, [](double x) { return std::exp(x); }, all);
    const double tanh = LargestError(*loops, UnaryOp::kTanh, [](double x) { return std::tanh(x); }, all);
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    const double sigmoid_error = LargestError(*loops, UnaryOp::kSigmoid, sigmoid, normal);
    const auto silu = [&](double x) { return std::isinf(x) ? (x > 0 ? x : std::nan("")) : x * sigmoid(x); };
    const double silu_error = LargestError(*loops, UnaryOp::kSilu, silu, above);
    RecordProperty(loops->name, testing::PrintToString(std::vector<double>{exp, tanh, sigmoid_error, silu_error}));
    EXPECT_LE(exp, 1.1) << loops->name;
    EXPECT_LE(tanh, 1.5) << loops->name;
    EXPECT_LE(sigmoid_error, 2.5) << loops->name;
    EXPECT_LE(silu_error, 3.0) << loops->name;
  }
}

// GELU shows the error of erf: x / 2 (1 + erf), so at most half of x times an absolute error of erf near one.
TEST(Loops, GeluIsAccurate) {
  std::vector<float> x, y;
  for (float v = -7; v < 7; v += 1e-5f) x.push_back(v);
  y.resize(x.size());
  for (const Loops* loops : Supported()) {
    loops->unary(UnaryOp::kGelu, 0, 0, {x.data(), DType::kF32}, {y.data(), DType::kF32}, 0, x.size());
    double worst = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], want = 0.5 * v * std::erfc(-v / std::sqrt(2.0));
      worst = std::max(worst, std::fabs(y[i] - want) / std::max(std::fabs(v), 1e-6));
    }
    EXPECT_LE(worst, 2.4e-7) << loops->name;  // two units in the last place of 1 + erf
  }
}

// Ranks let the processor take subnormal floats for zeros. Those of f16 are normal floats, and nothing is lost of them.
TEST(Loops, F16KeepsItsSubnormalsWhereFloatsAreFlushed) {
  constexpr unsigned kFlushToZeroAndDenormalsAreZero = 0x8040;
  std::vector<uint16_t> halves, back;
  std::vector<float> wanted;
  for (int bits = 0; bits < 1 << 16; ++bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) continue;
    const double size = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    halves.push_back(static_cast<uint16_t>(bits));
    wanted.push_back(static_cast<float>(bits >> 15 != 0 ? -size : size));
  }
  const unsigned before = _mm_getcsr();
  for (const Loops* loops : Supported()) {
    std::vector<float> floats(halves.size());
    back.assign(halves.size(), 0);
    const auto n = static_cast<int64_t>(halves.size());
    _mm_setcsr(before | kFlushToZeroAndDenormalsAreZero);
    loops->unary(UnaryOp::kCast, 0, 0, {halves.data(), DType::kF16}, {floats.data(), DType::kF32}, 0, n);
    loops->unary(UnaryOp::kCast, 0, 0, {floats.data(), DType::kF32}, {back.data(), DType::kF16}, 0, n);
    _mm_setcsr(before);
    EXPECT_TRUE(floats == wanted) << loops->name;
    EXPECT_TRUE(back == halves) << loops->name;
  }
}

}  // namespace
}  // namespace tacc::kernels::simd
