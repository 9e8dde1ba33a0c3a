// kernels/contract/resample.h: a thread an element of the result, which sums what it reads, or what reads it.
#include "kernels/contract/resample.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/load.h"

namespace tacc::kernels::cuda {
namespace {

template <typename T>
struct ResampledElement {
  AnyIn x;
  AnyOut y;
  ResampleGrid g;

  TACC_DEVICE void operator()(int64_t i) const {
    const ResampleDim &d0 = g.dims[0], &d1 = g.dims[1], &d2 = g.dims[2];
    const int64_t plane = i / g.out_size() * g.in_size();
    const int64_t p2 = i % d2.out, p1 = i / d2.out % d1.out, p0 = i / (d2.out * d1.out) % d0.out;
    const ResampleDim::Range r0 = d0.ReadBy(p0), r1 = d1.ReadBy(p1), r2 = d2.ReadBy(p2);
    T sum = 0;
    for (int64_t i0 = r0.begin; i0 < r0.end; ++i0) {
      const double w0 = d0.Weight(p0, i0) * g.factor;
      for (int64_t i1 = r1.begin; i1 < r1.end; ++i1) {
        const double w1 = w0 * d1.Weight(p1, i1);
        for (int64_t i2 = r2.begin; i2 < r2.end; ++i2)
          sum += static_cast<T>(w1 * d2.Weight(p2, i2)) * x.Load<T>(plane + (i0 * d1.in + i1) * d2.in + i2);
      }
    }
    y.Store(i, sum);
  }
};

template <typename T>
struct GradientOfElement {
  AnyIn dy;
  AnyOut dx;
  ResampleGrid g;

  TACC_DEVICE void operator()(int64_t i) const {
    const ResampleDim &d0 = g.dims[0], &d1 = g.dims[1], &d2 = g.dims[2];
    const int64_t plane = i / g.in_size() * g.out_size();
    const int64_t i2 = i % d2.in, i1 = i / d2.in % d1.in, i0 = i / (d2.in * d1.in) % d0.in;
    const ResampleDim::Range r0 = d0.ReadersOf(i0), r1 = d1.ReadersOf(i1), r2 = d2.ReadersOf(i2);
    T sum = 0;
    for (int64_t p0 = r0.begin; p0 < r0.end; ++p0) {
      if (!d0.Reads(p0, i0)) continue;
      const double w0 = d0.Weight(p0, i0) * g.factor;
      for (int64_t p1 = r1.begin; p1 < r1.end; ++p1) {
        if (!d1.Reads(p1, i1)) continue;
        const double w1 = w0 * d1.Weight(p1, i1);
        for (int64_t p2 = r2.begin; p2 < r2.end; ++p2) {
          if (!d2.Reads(p2, i2)) continue;
          sum += static_cast<T>(w1 * d2.Weight(p2, i2)) * dy.Load<T>(plane + (p0 * d1.out + p1) * d2.out + p2);
        }
      }
    }
    dx.Store(i, sum);
  }
};

void Resample(const TensorView& x, const ResampleGrid& grid, const TensorView& y) {
  WithComputeType({x}, [&](auto zero) { ForEach(y.size(), ResampledElement<decltype(zero)>{In(x), Out(y), grid}); });
}

void ResampleGrad(const TensorView& dy, const ResampleGrid& grid, const TensorView& dx) {
  WithComputeType({dx},
                  [&](auto zero) { ForEach(dx.size(), GradientOfElement<decltype(zero)>{In(dy), Out(dx), grid}); });
}

}  // namespace

const ResampleKernels kResample = {
    .Resample = Resample,
    .ResampleGrad = ResampleGrad,
};

}  // namespace tacc::kernels::cuda
