// kernels/contract/pool.h: a thread a window, or an element of the gradient.
#include <cmath>

#include "kernels/contract/pool.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/load.h"

namespace tacc::kernels::cuda {
namespace {

template <typename T>
struct LargestOfWindow {
  AnyIn x;
  AnyOut y;
  int32_t* indices;
  PoolGrid g;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t plane = i / g.num_windows() * g.image_size();
    const int64_t p2 = i % g.windows[2], p1 = i / g.windows[2] % g.windows[1],
                  p0 = i / (g.windows[2] * g.windows[1]) % g.windows[0];
    T largest = -static_cast<T>(HUGE_VAL);
    int64_t place = -1;
    for (int64_t k0 = 0; k0 < g.kernel[0]; ++k0) {
      const int64_t i0 = g.At(0, p0, k0);
      if (i0 < 0 || i0 >= g.image[0]) continue;
      for (int64_t k1 = 0; k1 < g.kernel[1]; ++k1) {
        const int64_t i1 = g.At(1, p1, k1);
        if (i1 < 0 || i1 >= g.image[1]) continue;
        for (int64_t k2 = 0; k2 < g.kernel[2]; ++k2) {
          const int64_t i2 = g.At(2, p2, k2);
          if (i2 < 0 || i2 >= g.image[2]) continue;
          const int64_t at = (i0 * g.image[1] + i1) * g.image[2] + i2;
          const T value = x.Load<T>(plane + at);
          const bool is_first_nan = value != value && largest == largest;
          if (place >= 0 && !(value > largest) && !is_first_nan) continue;
          largest = value, place = at;
        }
      }
    }
    y.Store(i, largest);
    indices[i] = static_cast<int32_t>(place);
  }
};

template <typename T>
struct GradientOfElement {
  AnyIn dy;
  const int32_t* indices;
  AnyOut dx;
  PoolGrid g;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t at = i % g.image_size(), windows = i / g.image_size() * g.num_windows();
    const int64_t i2 = at % g.image[2], i1 = at / g.image[2] % g.image[1], i0 = at / (g.image[2] * g.image[1]);
    T sum = 0;
    for (int64_t p0 = g.FirstWindow(0, i0); p0 <= g.LastWindow(0, i0); ++p0) {
      for (int64_t p1 = g.FirstWindow(1, i1); p1 <= g.LastWindow(1, i1); ++p1) {
        for (int64_t p2 = g.FirstWindow(2, i2); p2 <= g.LastWindow(2, i2); ++p2) {
          const int64_t window = windows + (p0 * g.windows[1] + p1) * g.windows[2] + p2;
          if (indices[window] == at) sum += dy.Load<T>(window);
        }
      }
    }
    dx.Store(i, sum);
  }
};

void MaxPool(const TensorView& x, const PoolWindow& window, const TensorView& y, const TensorView& indices) {
  const PoolGrid grid = PoolGrid::Of(window, x.dims, y.dims);
  TACC_KERNEL_CHECK(indices.dtype == DType::kI32 && indices.dims == y.dims);
  WithComputeType({x}, [&](auto zero) {
    ForEach(y.size(), LargestOfWindow<decltype(zero)>{In(x), Out(y), indices.as<int32_t>(), grid});
  });
}

void MaxPoolGrad(const TensorView& dy, const TensorView& indices, const PoolWindow& window, const TensorView& dx) {
  const PoolGrid grid = PoolGrid::Of(window, dx.dims, dy.dims);
  TACC_KERNEL_CHECK(indices.dtype == DType::kI32 && indices.dims == dy.dims);
  WithComputeType({dx}, [&](auto zero) {
    ForEach(dx.size(), GradientOfElement<decltype(zero)>{In(dy), indices.as<int32_t>(), Out(dx), grid});
  });
}

}  // namespace

const PoolKernels kPool = {
    .MaxPool = MaxPool,
    .MaxPoolGrad = MaxPoolGrad,
};

}  // namespace tacc::kernels::cuda
