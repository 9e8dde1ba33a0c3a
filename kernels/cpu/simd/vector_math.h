// Elementary functions, branch-free for float so that loops over them vectorise; for double they are libm's (f64 runs
// are test oracles). Polynomials are our own minimax fits (weighted least squares, reweighted). Largest errors over a
// dense sample of all floats, held by loops_test:
//   Exp     : 1.1 ulp, subnormal results included; infinity, 0 and NaN as exp.
//   Tanh    : 1.5 ulp.
//   Sigmoid : 2.5 ulp, Silu: 3 ulp where the result is normal; Silu is 0 below -88.7.
//   Erf     : so that Gelu is within 2.4e-7 |x|.
#ifndef TACC_KERNELS_CPU_SIMD_VECTOR_MATH_H_
#define TACC_KERNELS_CPU_SIMD_VECTOR_MATH_H_

#include <math.h>

#include "kernels/cpu/simd/block.h"

namespace tacc::kernels::simd::TACC_ISA {

TACC_INLINE double Exp(double x) { return ::exp(x); }
TACC_INLINE float Exp(float x) {
  // e^x = 2^n e^r with |r| <= ln2 / 2. Outside the clamp the result is 0 or infinity anyway. NaN falls through both.
  float c = x > 89.0f ? 89.0f : x;
  c = c < -104.0f ? -104.0f : c;
  // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
  const float shifted = c * 1.44269504f + 12582912.0f;
  const float n = shifted - 12582912.0f;
  const int32_t exponent = static_cast<int32_t>(FloatToBits(shifted)) - 0x4b400000;
  float r = c - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 0.0013951702f;
  p = p * r + 0.00836959f;
  p = p * r + 0.041666187f;
  p = p * r + 0.16666514f;
  p = p * r + 0.5f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n reaches 128 (overflow to infinity) and -150 (subnormal results).
  const int32_t low = exponent >> 1;
  const float scale1 = BitsToFloat(static_cast<uint32_t>(low + 127) << 23);
  const float scale2 = BitsToFloat(static_cast<uint32_t>(exponent - low + 127) << 23);
  const float result = p * scale1 * scale2;
  return x != x ? x : result;
}

TACC_INLINE double Log(double x) { return ::log(x); }
TACC_INLINE float Log(float x) { return ::logf(x); }
TACC_INLINE double Sqrt(double x) { return __builtin_sqrt(x); }
TACC_INLINE float Sqrt(float x) { return __builtin_sqrtf(x); }
TACC_INLINE double Abs(double x) { return __builtin_fabs(x); }
TACC_INLINE float Abs(float x) { return __builtin_fabsf(x); }

TACC_INLINE double Tanh(double x) { return ::tanh(x); }
TACC_INLINE float Tanh(float x) {
  const float a = Abs(x);
  const float s = x * x;
  float p = -0.005717037f;
  p = p * s + 0.020650579f;
  p = p * s + -0.053743497f;
  p = p * s + 0.13331491f;
  p = p * s + -0.33333284f;
  const float small = a + a * s * p;
  const float large = 1.0f - 2.0f / (Exp(2.0f * a) + 1.0f);
  return __builtin_copysignf(a < 0.625f ? small : large, x);
}

TACC_INLINE double Erf(double x) { return ::erf(x); }
TACC_INLINE float Erf(float x) {
  const float a = Abs(x);
  const float s = x * x;
  float p = 7.889114e-05f;
  p = p * s + -0.000802084f;
  p = p * s + 0.005189535f;
  p = p * s + -0.026854444f;
  p = p * s + 0.112836f;
  p = p * s + -0.37612626f;
  p = p * s + 0.12837917f;
  const float small = a + a * p;
  const float t = a > 4.1f ? 4.1f : a;
  float q = 5.150773e-06f;  // -log(erfc(t)) / t
  q = q * t + -4.820104e-05f;
  q = q * t + -3.6070298e-05f;
  q = q * t + 0.002892315f;
  q = q * t + -0.022612032f;
  q = q * t + 0.10520293f;
  q = q * t + 0.63565654f;
  q = q * t + 1.1285449f;
  const float large = 1.0f - Exp(-t * q);
  const float result = a < 0.95f ? small : large;
  return __builtin_copysignf(x != x ? x : result, x);
}

template <typename C>
TACC_INLINE C Sigmoid(C x) {
  return C(1) / (C(1) + Exp(-x));
}
template <typename C>
TACC_INLINE C SigmoidGrad(C x) {
  const C s = Sigmoid(x);
  return s * (C(1) - s);
}
template <typename C>
TACC_INLINE C Silu(C x) {
  return x / (C(1) + Exp(-x));
}
template <typename C>
TACC_INLINE C SiluGrad(C x) {
  const C s = Sigmoid(x);
  return s * (C(1) + x * (C(1) - s));
}

// GELU, exact and by tanh. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", section 2.
template <typename C>
TACC_INLINE C Gelu(C x) {
  return C(0.5) * x * (C(1) + Erf(x * C(0.70710678118654752)));
}
template <typename C>
TACC_INLINE C GeluGrad(C x) {
  const C cdf = C(0.5) * (C(1) + Erf(x * C(0.70710678118654752)));
  const C density = C(0.39894228040143268) * Exp(C(-0.5) * x * x);
  return cdf + x * density;
}
template <typename C>
TACC_INLINE C GeluTanh(C x) {
  const C inner = C(0.79788456080286536) * (x + C(0.044715) * x * x * x);
  return C(0.5) * x * (C(1) + Tanh(inner));
}
template <typename C>
TACC_INLINE C GeluTanhGrad(C x) {
  const C x2 = x * x;
  const C inner = C(0.79788456080286536) * (x + C(0.044715) * x2 * x);
  const C t = Tanh(inner);
  const C dinner = C(0.79788456080286536) * (C(1) + C(3 * 0.044715) * x2);
  return C(0.5) * (C(1) + t) + C(0.5) * x * (C(1) - t * t) * dinner;
}

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_VECTOR_MATH_H_
