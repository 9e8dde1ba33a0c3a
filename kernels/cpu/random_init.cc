// Compiled with -ffp-contract=off and calling nothing of libm but sqrt, so that results are the same on every machine.

#include "kernels/cpu/random_init.h"

#include <cmath>
#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

// SplitMix64's finaliser. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", figure 17.
uint64_t Mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// In (0, 1): the middle of one of 2^52 equal parts.
double Uniform01(uint64_t stream, uint64_t index) {
  const uint64_t bits = Mix(stream + (index + 1) * 0x9e3779b97f4a7c15u);
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// Natural logarithm of x > 0: mantissa in [sqrt(1/2), sqrt(2)), 2 atanh((m - 1) / (m + 1)) as a series.
double Log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  int64_t exponent = static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
  double m;
  std::memcpy(&m, &bits, 8);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  const double t = (m - 1) / (m + 1), t2 = t * t;
  double sum = 0;
  for (int i = 21; i >= 1; i -= 2) sum = sum * t2 + 1.0 / i;
  return 2 * t * sum + static_cast<double>(exponent) * 0.69314718055994531;
}

// Inverse of the normal distribution function. Source: P. J. Acklam, "An algorithm for computing the inverse normal
// cumulative distribution function", 2003.
double InverseNormal(double p) {
  constexpr double kA[] = {-3.969683028665376e+01, 2.209460984245205e+02,  -2.759285104469687e+02,
                           1.383577518672690e+02,  -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double kB[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01,
                           -1.328068155288572e+01};
  constexpr double kC[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00,
                           -2.549732539343734e+00, 4.374664141464968e+00,  2.938163982698783e+00};
  constexpr double kD[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  constexpr double kLow = 0.02425;
  const double tail = p < 0.5 ? p : 1 - p;
  if (tail >= kLow) {
    const double q = p - 0.5, r = q * q;
    const double numerator = ((((kA[0] * r + kA[1]) * r + kA[2]) * r + kA[3]) * r + kA[4]) * r + kA[5];
    const double denominator = ((((kB[0] * r + kB[1]) * r + kB[2]) * r + kB[3]) * r + kB[4]) * r + 1;
    return numerator * q / denominator;
  }
  const double q = std::sqrt(-2 * Log(tail));
  const double numerator = ((((kC[0] * q + kC[1]) * q + kC[2]) * q + kC[3]) * q + kC[4]) * q + kC[5];
  const double denominator = (((kD[0] * q + kD[1]) * q + kD[2]) * q + kD[3]) * q + 1;
  const double value = numerator / denominator;
  return p < 0.5 ? value : -value;
}

// The normal distribution function at x < 0, by bisection of its inverse: so it has the same bits on every machine,
// too.
double NormalBelow(double x) {
  double low = 0, high = 0.5;
  for (int i = 0; i < 200 && low < high; ++i) {
    const double middle = low + (high - low) / 2;
    if (middle <= low || middle >= high) break;
    (InverseNormal(middle) < x ? low : high) = middle;
  }
  return high;
}

}  // namespace

uint64_t HashName(const std::string& name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

void RandomInit(Distribution distribution, double first, double second, const RandomKey& key,
                const Rectangle& rectangle, const TensorView& y) {
  const int rank = y.dims.rank();
  TACC_KERNEL_CHECK(rectangle.logical.rank() == rank && rectangle.offset.rank() == rank &&
                    rectangle.extent.rank() == rank);
  for (int i = 0; i < rank; ++i) {
    TACC_KERNEL_CHECK(rectangle.extent[i] <= y.dims[i] &&
                      rectangle.offset[i] + rectangle.extent[i] <= rectangle.logical[i]);
  }
  const uint64_t stream = Mix(key.seed ^ Mix(key.name_hash));
  const int64_t n = y.row_length();
  const int64_t row_extent = rank == 0 ? 1 : rectangle.extent[rank - 1];
  const Strides logical = DenseStrides(rectangle.logical);
  const simd::Loops& loops = simd::BestLoops();
  const DType wide = y.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  const double tail = distribution == Distribution::kTruncatedNormal ? NormalBelow(-second / first) : 0;
  ParallelFor(y.num_rows(), 1 + 4096 / (n + 1), [&](int64_t begin, int64_t end) {
    constexpr int64_t kBlock = 256;
    double values[kBlock];
    for (int64_t row = begin; row < end; ++row) {
      int64_t index = row, start = rank == 0 ? 0 : rectangle.offset[rank - 1];
      bool inside = true;
      for (int d = rank - 2; d >= 0; --d) {
        const int64_t position = index % y.dims[d];
        index /= y.dims[d];
        inside = inside && position < rectangle.extent[d];
        start += (rectangle.offset[d] + position) * logical[d];
      }
      for (int64_t i = 0; i < n; i += kBlock) {
        const int64_t width = n - i < kBlock ? n - i : kBlock;
        for (int64_t j = 0; j < width; ++j) {
          double value = 0;
          if (inside && i + j < row_extent) {
            value = first;
            if (distribution != Distribution::kConstant) {
              const double u = Uniform01(stream, static_cast<uint64_t>(start + i + j));
              value = distribution == Distribution::kNormal ? first + second * InverseNormal(u)
                      : distribution == Distribution::kTruncatedNormal
                          ? first * InverseNormal(tail + (1 - 2 * tail) * u)
                          : first + (second - first) * u;
            }
          }
          values[j] = wide == DType::kF64 ? value : static_cast<double>(static_cast<float>(value));
        }
        loops.unary(UnaryOp::kCast, 0, 0, {values, DType::kF64},
                    {y.as<char>() + (row * n + i) * SizeOf(y.dtype), y.dtype}, 0, width);
      }
    }
  });
}

}  // namespace tacc::kernels::cpu
