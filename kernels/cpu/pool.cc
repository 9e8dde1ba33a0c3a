#include "kernels/contract/pool.h"

#include <cmath>
#include <limits>
#include <type_traits>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/planes.h"

namespace tacc::kernels::cpu {
namespace {

// The first and the behind-last element of the kernel that lie in the image, for window p of dim d.
struct Taps {
  int64_t begin, end;
};
Taps TapsOf(const PoolGrid& g, int d, int64_t p) {
  Taps taps{0, g.kernel[d]};
  while (taps.begin < taps.end && g.At(d, p, taps.begin) < 0) ++taps.begin;
  while (taps.begin < taps.end && g.At(d, p, taps.end - 1) >= g.image[d]) --taps.end;
  return taps;
}

template <typename C>
void LargestOfPlane(const PoolGrid& g, const C* x, C* y, int32_t* indices) {
  for (int64_t p0 = 0, window = 0; p0 < g.windows[0]; ++p0) {
    const Taps t0 = TapsOf(g, 0, p0);
    for (int64_t p1 = 0; p1 < g.windows[1]; ++p1) {
      const Taps t1 = TapsOf(g, 1, p1);
      for (int64_t p2 = 0; p2 < g.windows[2]; ++p2, ++window) {
        const Taps t2 = TapsOf(g, 2, p2);
        C largest = -std::numeric_limits<C>::infinity();
        int64_t place = -1;
        for (int64_t k0 = t0.begin; k0 < t0.end; ++k0) {
          for (int64_t k1 = t1.begin; k1 < t1.end; ++k1) {
            const int64_t row = (g.At(0, p0, k0) * g.image[1] + g.At(1, p1, k1)) * g.image[2];
            for (int64_t k2 = t2.begin; k2 < t2.end; ++k2) {
              const int64_t i = row + g.At(2, p2, k2);
              if (place >= 0 && !(x[i] > largest) && !std::isnan(x[i])) continue;
              if (std::isnan(largest)) continue;
              largest = x[i], place = i;
            }
          }
        }
        y[window] = largest;
        indices[window] = static_cast<int32_t>(place);
      }
    }
  }
}

// Windows that hold an element give it their gradients, in order.
template <typename C>
void GradientOfPlane(const PoolGrid& g, const C* dy, const int32_t* indices, C* dx) {
  for (int64_t i = 0; i < g.image_size(); ++i) {
    const int64_t i2 = i % g.image[2], i1 = i / g.image[2] % g.image[1], i0 = i / g.image[2] / g.image[1];
    C sum = 0;
    for (int64_t p0 = g.FirstWindow(0, i0); p0 <= g.LastWindow(0, i0); ++p0) {
      for (int64_t p1 = g.FirstWindow(1, i1); p1 <= g.LastWindow(1, i1); ++p1) {
        for (int64_t p2 = g.FirstWindow(2, i2); p2 <= g.LastWindow(2, i2); ++p2) {
          const int64_t window = (p0 * g.windows[1] + p1) * g.windows[2] + p2;
          if (indices[window] == i) sum += dy[window];
        }
      }
    }
    dx[i] = sum;
  }
}

void MaxPool(const TensorView& x, const PoolWindow& window, const TensorView& y, const TensorView& indices) {
  const PoolGrid grid = PoolGrid::Of(window, x.dims, y.dims);
  TACC_KERNEL_CHECK(indices.dtype == DType::kI32 && indices.dims == y.dims);
  ForEachPlane(x.dims.Product(0, 2), x, y, [&](int64_t plane, const auto* from, auto* to) {
    LargestOfPlane(grid, from, to, indices.as<int32_t>() + plane * grid.num_windows());
  });
}

void MaxPoolGrad(const TensorView& dy, const TensorView& indices, const PoolWindow& window, const TensorView& dx) {
  const PoolGrid grid = PoolGrid::Of(window, dx.dims, dy.dims);
  TACC_KERNEL_CHECK(indices.dtype == DType::kI32 && indices.dims == dy.dims);
  ForEachPlane(dx.dims.Product(0, 2), dy, dx, [&](int64_t plane, const auto* from, auto* to) {
    GradientOfPlane(grid, from, indices.as<int32_t>() + plane * grid.num_windows(), to);
  });
}

}  // namespace

const PoolKernels kPool = {
    .MaxPool = MaxPool,
    .MaxPoolGrad = MaxPoolGrad,
};

}  // namespace tacc::kernels::cpu
