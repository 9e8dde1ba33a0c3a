// Elementary functions of f32 and f64, on the GPU and on the host: CUDA's and libm's, which agree within a few units in
// the last place. Formulas as in kernels/cpu/simd/vector_math.h.
#ifndef TACC_KERNELS_CUDA_LAUNCH_ELEMENTARY_H_
#define TACC_KERNELS_CUDA_LAUNCH_ELEMENTARY_H_

#include <math.h>

#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {

TACC_DEVICE inline float Exp(float x) { return ::expf(x); }
TACC_DEVICE inline double Exp(double x) { return ::exp(x); }
TACC_DEVICE inline float Log(float x) { return ::logf(x); }
TACC_DEVICE inline double Log(double x) { return ::log(x); }
TACC_DEVICE inline float Sqrt(float x) { return ::sqrtf(x); }
TACC_DEVICE inline double Sqrt(double x) { return ::sqrt(x); }
TACC_DEVICE inline float Sin(float x) { return ::sinf(x); }
TACC_DEVICE inline double Sin(double x) { return ::sin(x); }
TACC_DEVICE inline float Cos(float x) { return ::cosf(x); }
TACC_DEVICE inline double Cos(double x) { return ::cos(x); }
TACC_DEVICE inline float Tanh(float x) { return ::tanhf(x); }
TACC_DEVICE inline double Tanh(double x) { return ::tanh(x); }
TACC_DEVICE inline float Erf(float x) { return ::erff(x); }
TACC_DEVICE inline double Erf(double x) { return ::erf(x); }

// numerator / (1 + exp(-x)). In f32 a GPU takes its approximate exponential and division, which are off by 2 + 1.2 |x|
// and by 2 units in the last place (the first of a summand that is small where |x| is large and positive), in a
// fraction of the instructions. Source: CUDA C++ Programming Guide, "Intrinsic Functions".
TACC_DEVICE inline float TimesSigmoid(float numerator, float x) {
#ifdef __CUDACC__
  return __fdividef(numerator, 1.0f + __expf(-x));
#else
  return numerator / (1.0f + Exp(-x));
#endif
}
TACC_DEVICE inline double TimesSigmoid(double numerator, double x) { return numerator / (1.0 + Exp(-x)); }

template <typename T>
TACC_DEVICE inline T Sigmoid(T x) {
  return TimesSigmoid(T(1), x);
}
template <typename T>
TACC_DEVICE inline T SigmoidGrad(T x) {
  const T s = Sigmoid(x);
  return s * (T(1) - s);
}
template <typename T>
TACC_DEVICE inline T Silu(T x) {
  return TimesSigmoid(x, x);
}
template <typename T>
TACC_DEVICE inline T SiluGrad(T x) {
  const T s = Sigmoid(x);
  return s * (T(1) + x * (T(1) - s));
}

// GELU, exact and by tanh. Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", section 2.
template <typename T>
TACC_DEVICE inline T Gelu(T x) {
  return T(0.5) * x * (T(1) + Erf(x * T(0.70710678118654752)));
}
template <typename T>
TACC_DEVICE inline T GeluGrad(T x) {
  const T cdf = T(0.5) * (T(1) + Erf(x * T(0.70710678118654752)));
  return cdf + x * T(0.39894228040143268) * Exp(T(-0.5) * x * x);
}
template <typename T>
TACC_DEVICE inline T GeluTanh(T x) {
  return T(0.5) * x * (T(1) + Tanh(T(0.79788456080286536) * (x + T(0.044715) * x * x * x)));
}
template <typename T>
TACC_DEVICE inline T GeluTanhGrad(T x) {
  const T square = x * x;
  const T t = Tanh(T(0.79788456080286536) * (x + T(0.044715) * square * x));
  const T inner = T(0.79788456080286536) * (T(1) + T(3 * 0.044715) * square);
  return T(0.5) * (T(1) + t) + T(0.5) * x * (T(1) - t * t) * inner;
}

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LAUNCH_ELEMENTARY_H_
