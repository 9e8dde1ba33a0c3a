#include "worker/rank/program/bind_image_kernels.h"

#include <vector>

#include "kernels/contract/kernels.h"

namespace tacc::worker {
namespace {

Dims Repeated(int64_t value, int n) {
  Dims dims;
  for (int i = 0; i < n; ++i) dims.push_back(value);
  return dims;
}

Dims SpatialDims(const Binding& b, const char* name, const Dims& fallback) {
  return b.has(name) ? b.dims(name) : fallback;
}

kernels::ResampleGrid GridOf(const Dims& image, const Dims& resampled) {
  kernels::ResampleGrid grid;
  const int n = image.rank() - 2;
  for (int i = 0; i < n; ++i) {
    grid.dims[3 - n + i].in = image[2 + i];
    grid.dims[3 - n + i].out = resampled[2 + i];
  }
  return grid;
}

// Windows of a node: as its attributes say, and else one element after the other.
kernels::ConvolutionWindow ConvolutionWindowOf(const Binding& b) {
  const int n = b.in(0).dims.rank() - 2;
  return {SpatialDims(b, "stride", Repeated(1, n)), SpatialDims(b, "padding", Repeated(0, n)),
          SpatialDims(b, "dilation", Repeated(1, n))};
}

kernels::PoolWindow PoolWindowOf(const Binding& b) {
  const Dims kernel = b.dims("kernel");
  const int n = kernel.rank();
  return {kernel, SpatialDims(b, "stride", kernel), SpatialDims(b, "padding", Repeated(0, n)),
          SpatialDims(b, "dilation", Repeated(1, n))};
}

// Of a node of avg_pool, or of its gradient: from the spatial dims of `image` to those of `resampled`.
kernels::ResampleGrid AvgPoolGridOf(const Binding& b, const Dims& image, const Dims& resampled) {
  kernels::ResampleGrid grid = GridOf(image, resampled);
  if (!b.has("kernel")) {
    for (kernels::ResampleDim& dim : grid.dims) dim.kind = kernels::Resampling::kAdaptive;
    return grid;
  }
  const kernels::PoolWindow window = PoolWindowOf(b);
  const int n = window.kernel.rank();
  for (int i = 0; i < n; ++i) {
    kernels::ResampleDim& dim = grid.dims[3 - n + i];
    dim.kernel = window.kernel[i];
    dim.stride = window.stride[i];
    dim.padding = window.padding[i];
    dim.counts_padding = b.attr<bool>("count_include_pad", true);
  }
  if (!b.has("divisor")) return grid;
  grid.factor = 1 / static_cast<double>(b.attr<int64_t>("divisor"));
  for (kernels::ResampleDim& dim : grid.dims) dim.kind = kernels::Resampling::kWindowSums;
  return grid;
}

// The same of interpolate.
kernels::ResampleGrid InterpolateGridOf(const Binding& b, const Dims& image, const Dims& resampled) {
  const std::string mode = b.attr<std::string>("mode");
  const kernels::Resampling kind = mode == "nearest"         ? kernels::Resampling::kNearest
                                   : mode == "nearest_exact" ? kernels::Resampling::kNearestExact
                                   : mode == "linear"        ? kernels::Resampling::kLinear
                                                             : kernels::Resampling::kCubic;
  const auto scales = b.attr<std::vector<double>>("scales");
  kernels::ResampleGrid grid = GridOf(image, resampled);
  const int n = image.rank() - 2;
  for (int i = 0; i < n; ++i) {
    kernels::ResampleDim& dim = grid.dims[3 - n + i];
    dim.kind = kind;
    dim.aligns_corners = b.attr<bool>("align_corners");
    const auto in = static_cast<double>(dim.in), out = static_cast<double>(dim.out);
    dim.scale = dim.aligns_corners ? (dim.out > 1 ? (in - 1) / (out - 1) : 0)
                : scales.empty()   ? in / out
                                   : 1 / scales[i];
  }
  return grid;
}

kernels::MomentsParameters MomentsParametersOf(const Binding& b) {
  double count = 1;
  for (const int64_t extent : b.attr<std::vector<int64_t>>("extents")) count *= static_cast<double>(extent);
  return {count, b.attr<double>("momentum")};
}

absl::StatusOr<Kernel> Convolution(const Binding& b) {
  return Kernel([&k = b.kernels.convolution, window = ConvolutionWindowOf(b), x = b.in(0), w = b.in(1),
                 bias = b.in_or_absent(2), y = b.out(0)] { k.Convolution(x, w, bias, window, y); });
}

absl::StatusOr<Kernel> ConvolutionTransposed(const Binding& b) {
  return Kernel([&k = b.kernels.convolution, window = ConvolutionWindowOf(b), y = b.in(0), w = b.in(1),
                 bias = b.in_or_absent(2), x = b.out(0)] { k.ConvolutionTransposed(y, w, bias, window, x); });
}

absl::StatusOr<Kernel> ConvolutionGradWeight(const Binding& b) {
  return Kernel([&k = b.kernels.convolution, window = ConvolutionWindowOf(b), dy = b.in(0), x = b.in(1),
                 dw = b.out(0)] { k.ConvolutionGradWeight(dy, x, window, dw); });
}

absl::StatusOr<Kernel> MaxPool(const Binding& b) {
  return Kernel([&k = b.kernels.pool, window = PoolWindowOf(b), x = b.in(0), y = b.out(0), indices = b.out(1)] {
    k.MaxPool(x, window, y, indices);
  });
}

absl::StatusOr<Kernel> MaxPoolGrad(const Binding& b) {
  return Kernel([&k = b.kernels.pool, window = PoolWindowOf(b), dy = b.in(0), indices = b.in(1), dx = b.out(0)] {
    k.MaxPoolGrad(dy, indices, window, dx);
  });
}

using ResampleGridOf = kernels::ResampleGrid (*)(const Binding&, const Dims& image, const Dims& resampled);

template <ResampleGridOf kGridOf>
absl::StatusOr<Kernel> Resample(const Binding& b) {
  return Kernel([&k = b.kernels.resample, grid = kGridOf(b, b.in(0).dims, b.out(0).dims), x = b.in(0), y = b.out(0)] {
    k.Resample(x, grid, y);
  });
}

template <ResampleGridOf kGridOf>
absl::StatusOr<Kernel> ResampleGrad(const Binding& b) {
  return Kernel([&k = b.kernels.resample, grid = kGridOf(b, b.out(0).dims, b.in(0).dims), dy = b.in(0), dx = b.out(0)] {
    k.ResampleGrad(dy, grid, dx);
  });
}

// How many groups of samples numbers of channels, [C] or [G,C], are of.
int64_t NumGroups(const TensorView& numbers) { return numbers.dims.rank() == 2 ? numbers.dims[0] : 1; }

// Of so many parts that follow one another along the first dim, this one.
TensorView Part(const TensorView& x, int64_t part, int64_t parts) {
  if (x.data == nullptr) return x;
  TensorView view = x;
  view.dims[0] /= parts;
  view.data = x.as<char>() + part * view.bytes();
  return view;
}

absl::StatusOr<Kernel> ChannelSums(const Binding& b) {
  return Kernel([&k = b.kernels.channel, n = NumGroups(b.out(0)), x = b.in(0), z = b.in_or_absent(1), sums = b.out(0),
                 products = b.out(1)] {
    for (int64_t i = 0; i < n; ++i) k.ChannelSums(Part(x, i, n), Part(z, i, n), Part(sums, i, n), Part(products, i, n));
  });
}

absl::StatusOr<Kernel> ChannelAffine(const Binding& b) {
  return Kernel([&k = b.kernels.channel, n = NumGroups(b.in(1)), x = b.in(0), a = b.in(1), offset = b.in_or_absent(2),
                 y = b.out(0)] {
    for (int64_t i = 0; i < n; ++i)
      k.ChannelAffine(Part(x, i, n), Part(a, i, n), TensorView(), TensorView(), Part(offset, i, n), Part(y, i, n));
  });
}

absl::StatusOr<Kernel> ChannelAffinePair(const Binding& b) {
  return Kernel([&k = b.kernels.channel, n = NumGroups(b.in(1)), x = b.in(0), a = b.in(1), z = b.in(2), of_z = b.in(3),
                 offset = b.in_or_absent(4), y = b.out(0)] {
    for (int64_t i = 0; i < n; ++i) {
      k.ChannelAffine(Part(x, i, n), Part(a, i, n), Part(z, i, n), Part(of_z, i, n), Part(offset, i, n), Part(y, i, n));
    }
  });
}

absl::StatusOr<Kernel> BatchMoments(const Binding& b) {
  return Kernel([&k = b.kernels.channel, p = MomentsParametersOf(b), sums = b.in(0), products = b.in(1),
                 running_mean = b.in_or_absent(2), running_variance = b.in_or_absent(3), mean = b.out(0),
                 variance = b.out(1), new_mean = b.out_or_absent(2), new_variance = b.out_or_absent(3)] {
    k.BatchMoments(sums, products, running_mean, running_variance, p, mean, variance, new_mean, new_variance);
  });
}

}  // namespace

const std::map<std::string, PrepareKernel>& ImageKernels() {
  static const std::map<std::string, PrepareKernel> table = {
      {"avg_pool", Resample<AvgPoolGridOf>},
      {"avg_pool_grad", ResampleGrad<AvgPoolGridOf>},
      {"batch_moments", BatchMoments},
      {"channel_affine", ChannelAffine},
      {"channel_affine_pair", ChannelAffinePair},
      {"channel_sums", ChannelSums},
      {"convolution", Convolution},
      {"convolution_grad_weight", ConvolutionGradWeight},
      {"convolution_transposed", ConvolutionTransposed},
      {"interpolate", Resample<InterpolateGridOf>},
      {"interpolate_grad", ResampleGrad<InterpolateGridOf>},
      {"max_pool", MaxPool},
      {"max_pool_grad", MaxPoolGrad},
  };
  return table;
}

}  // namespace tacc::worker
