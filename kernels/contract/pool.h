// Largest elements of windows of images [N,C,spatial...], 1 to 3 spatial dims.
#ifndef TACC_KERNELS_CONTRACT_POOL_H_
#define TACC_KERNELS_CONTRACT_POOL_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

// How windows lie: an entry a spatial dim; padding is on both sides, and no element of it is chosen.
struct PoolWindow {
  Dims kernel, stride, padding, dilation;
};

// The same with three spatial dims, to which images of fewer are brought by dims of 1 in front; for loops on every
// device.
struct PoolGrid {
  int64_t image[3], windows[3], kernel[3], stride[3], padding[3], dilation[3];

  static PoolGrid Of(const PoolWindow& window, const Dims& image, const Dims& windows) {
    PoolGrid grid = {{1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}, {1, 1, 1}};
    const int n = window.kernel.rank();
    TACC_KERNEL_CHECK(n >= 1 && n <= 3 && image.rank() == n + 2 && windows.rank() == n + 2);
    for (int i = 0; i < n; ++i) {
      const int d = 3 - n + i;
      grid.image[d] = image[2 + i], grid.windows[d] = windows[2 + i];
      grid.kernel[d] = window.kernel[i], grid.stride[d] = window.stride[i];
      grid.padding[d] = window.padding[i], grid.dilation[d] = window.dilation[i];
    }
    return grid;
  }
  constexpr int64_t image_size() const { return image[0] * image[1] * image[2]; }
  constexpr int64_t num_windows() const { return windows[0] * windows[1] * windows[2]; }
  // Where element k of window p begins in dim d; outside of the image in the padding.
  constexpr int64_t At(int d, int64_t p, int64_t k) const { return p * stride[d] - padding[d] + k * dilation[d]; }
  // The first and the last window that may hold element i of dim d.
  constexpr int64_t FirstWindow(int d, int64_t i) const {
    const int64_t before = i + padding[d] - (kernel[d] - 1) * dilation[d];
    return before <= 0 ? 0 : (before + stride[d] - 1) / stride[d];
  }
  constexpr int64_t LastWindow(int d, int64_t i) const {
    const int64_t last = (i + padding[d]) / stride[d];
    return last < windows[d] ? last : windows[d] - 1;
  }
};

struct PoolKernels {
  // y [N,C,windows...]: the largest element of each window; indices i32[N,C,windows...]: its place among the spatial
  // elements of its channel, of equal ones the first. What is not a number counts as the largest. A window that has no
  // element of the image gives -infinity and the place -1.
  void (&MaxPool)(const TensorView& x, const PoolWindow& window, const TensorView& y, const TensorView& indices);

  // dx [N,C,spatial...]: of each element the sum of dy over the windows that chose it, in their order.
  void (&MaxPoolGrad)(const TensorView& dy, const TensorView& indices, const PoolWindow& window, const TensorView& dx);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_POOL_H_
