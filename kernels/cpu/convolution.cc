// Convolutions by LibTorch (oneDNN). Where the windows are single elements, which lie as x does, they are products of
// matrices, made where the result lies; f64, which oneDNN does not have, is computed by loops of our own.
#include "kernels/contract/convolution.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm_cpu_dispatch.h>
#include <ATen/ops/baddbmm_cpu_dispatch.h>
#include <ATen/ops/bmm_cpu_dispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm_cpu_dispatch.h>

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "kernels/contract/pointwise.h"
#include "kernels/contract/pool.h"
#include "kernels/contract/shape.h"
#include "kernels/contract/unary.h"
#include "kernels/cpu/aten.h"
#include "kernels/cpu/einsum.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

c10::IntArrayRef Ref(const Dims& dims) { return {dims.begin(), static_cast<size_t>(dims.rank())}; }

at::Tensor Whole(const TensorView& x) { return at::from_blob(x.data, Ref(x.dims), AtenOptions(x.dtype)); }

// In which type operands of `dtype` are multiplied.
DType ComputeType(DType dtype) {
  if (dtype == DType::kF64) return dtype;
  return dtype == DType::kBF16 && HasBf16Multiply() ? dtype : DType::kF32;
}

// An operand in that type, in memory of its own if it is of another.
class Operand {
 public:
  explicit Operand(const TensorView& x)
      : memory_(IsConverted(x) ? x.size() * SizeOf(ComputeType(x.dtype)) : 0), view_(x) {
    if (!IsConverted(x)) return;
    view_ = {memory_.data(), ComputeType(x.dtype), x.dims};
    kUnary.Unary(UnaryOp::kCast, x, view_, {});
  }
  const TensorView& view() const { return view_; }
  at::Tensor tensor() const { return Whole(view_); }

 private:
  static bool IsConverted(const TensorView& x) { return x.data != nullptr && ComputeType(x.dtype) != x.dtype; }

  Scratch memory_;
  TensorView view_;
};

struct Shapes {
  TensorView x, w, y;

  int64_t n() const { return x.dims[0]; }
  int64_t in_channels() const { return x.dims[1]; }
  int64_t out_channels() const { return y.dims[1]; }
  int64_t groups() const { return w.dims[1] == 0 ? 1 : in_channels() / w.dims[1]; }
  int64_t spatial() const { return x.dims.Product(2, x.dims.rank()); }
  bool is_empty() const { return x.size() == 0 || w.size() == 0 || y.size() == 0; }
};

// Whether y[n] = w x[n], with images as matrices of channels by spatial elements.
bool IsProduct(const Shapes& s, const ConvolutionWindow& window) {
  if (s.groups() != 1) return false;
  for (int i = 0; i < window.stride.rank(); ++i) {
    if (s.w.dims[2 + i] != 1 || window.stride[i] != 1 || window.padding[i] != 0) return false;
  }
  return true;
}

at::Tensor ImageMatrices(const TensorView& image) {
  return at::from_blob(image.data, {image.dims[0], image.dims[1], image.dims.Product(2, image.dims.rank())},
                       AtenOptions(image.dtype));
}
at::Tensor WeightMatrix(const TensorView& w) {
  return at::from_blob(w.data, {w.dims[0], w.dims[1]}, AtenOptions(w.dtype));
}

// to = result, of another dtype or with strides, for all we know.
void Put(const at::Tensor& result, const TensorView& to) { Whole(to).copy_(result); }

// The bias as a tensor that is added to matrices of `channels` rows, or to images.
at::Tensor Broadcast(const Operand& bias, int rank) {
  std::vector<int64_t> dims(rank, 1);
  dims[1] = bias.view().size();
  return bias.tensor().view(dims);
}

// to[n] = w from[n] + bias, with w or its transposed.
void MultiplyEach(const at::Tensor& w, const TensorView& from, const TensorView& bias, const TensorView& to) {
  const Operand operand(from), summand(bias);
  const DType compute = operand.view().dtype;
  const at::Tensor weights = w.expand({from.dims[0], w.size(0), w.size(1)}), images = ImageMatrices(operand.view());
  const Scratch memory(compute == to.dtype ? 0 : to.size() * SizeOf(compute));
  const TensorView product = compute == to.dtype ? to : TensorView{memory.data(), compute, to.dims};
  at::Tensor result = ImageMatrices(product);
  if (bias.data == nullptr) {
    at::cpu::bmm_out(result, weights, images);
  } else {
    at::cpu::baddbmm_out(result, Broadcast(summand, 3).expand_as(result), weights, images);
  }
  if (compute != to.dtype) kUnary.Unary(UnaryOp::kCast, product, to, {});
}

// dw = sum over n of dy[n] x[n]^T, in the dtype of all.
void SumProducts(const TensorView& dy, const TensorView& x, const TensorView& dw) {
  at::Tensor sum = WeightMatrix(dw);
  const at::Tensor d = ImageMatrices(dy), images = ImageMatrices(x);
  for (int64_t n = 0; n < x.dims[0]; ++n) {
    const at::Tensor right = images.select(0, n).t();
    if (n == 0) {
      at::cpu::mm_out(sum, d.select(0, n), right);
    } else {
      at::cpu::addmm_out(sum, sum, d.select(0, n), right);
    }
  }
}

// The loops for f64: visit(first element of a row of windows, place in x of the first, elements, element of the
// kernel), for each row of windows along the last dim and each element of the kernel, of one plane each of x and y.
template <typename Visit>
void ForEachRow(const PoolGrid& g, const Visit& visit) {
  for (int64_t k = 0; k < g.kernel[0] * g.kernel[1] * g.kernel[2]; ++k) {
    const int64_t k2 = k % g.kernel[2], k1 = k / g.kernel[2] % g.kernel[1], k0 = k / g.kernel[2] / g.kernel[1];
    int64_t begin = 0, end = g.windows[2];
    while (begin < end && g.At(2, begin, k2) < 0) ++begin;
    while (begin < end && g.At(2, end - 1, k2) >= g.image[2]) --end;
    if (begin == end) continue;
    for (int64_t row = 0; row < g.windows[0] * g.windows[1]; ++row) {
      const int64_t i0 = g.At(0, row / g.windows[1], k0), i1 = g.At(1, row % g.windows[1], k1);
      if (i0 < 0 || i0 >= g.image[0] || i1 < 0 || i1 >= g.image[1]) continue;
      visit(row * g.windows[2] + begin, (i0 * g.image[1] + i1) * g.image[2] + g.At(2, begin, k2), end - begin, k);
    }
  }
}

PoolGrid GridOf(const Shapes& s, const ConvolutionWindow& window) {
  return PoolGrid::Of({Dims(s.w.dims.begin() + 2, s.w.dims.end()), window.stride, window.padding, window.dilation},
                      s.x.dims, s.y.dims);
}

// Planes of doubles: of one channel of one image, or the kernel from one channel to one.
struct Planes {
  Shapes s;
  PoolGrid grid;

  double* x(int64_t n, int64_t c) const { return s.x.as<double>() + (n * s.in_channels() + c) * grid.image_size(); }
  double* y(int64_t n, int64_t o) const { return s.y.as<double>() + (n * s.out_channels() + o) * grid.num_windows(); }
  double* w(int64_t o, int64_t c) const {
    return s.w.as<double>() + (o * s.w.dims[1] + c) * grid.kernel[0] * grid.kernel[1] * grid.kernel[2];
  }
  int64_t group_of_output(int64_t o) const { return o / (s.out_channels() / s.groups()); }
};

double BiasOf(const TensorView& bias, int64_t c) { return bias.data == nullptr ? 0 : bias.as<double>()[c]; }

void LoopY(const Planes& p, const TensorView& bias) {
  const int64_t of_group = p.s.w.dims[1], stride = p.grid.stride[2];
  ParallelFor(p.s.n() * p.s.out_channels(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / p.s.out_channels(), o = i % p.s.out_channels();
      double* y = p.y(n, o);
      std::fill(y, y + p.grid.num_windows(), BiasOf(bias, o));
      for (int64_t c = 0; c < of_group; ++c) {
        const double *w = p.w(o, c), *x = p.x(n, p.group_of_output(o) * of_group + c);
        ForEachRow(p.grid, [&](int64_t to, int64_t from, int64_t count, int64_t k) {
          for (int64_t j = 0; j < count; ++j) y[to + j] += w[k] * x[from + j * stride];
        });
      }
    }
  });
}

void LoopX(const Planes& p, const TensorView& bias) {
  const int64_t of_group = p.s.w.dims[1], outputs = p.s.out_channels() / p.s.groups(), stride = p.grid.stride[2];
  ParallelFor(p.s.n() * p.s.in_channels(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = i / p.s.in_channels(), c = i % p.s.in_channels();
      double* x = p.x(n, c);
      std::fill(x, x + p.grid.image_size(), BiasOf(bias, c));
      for (int64_t o = c / of_group * outputs; o < (c / of_group + 1) * outputs; ++o) {
        const double *w = p.w(o, c % of_group), *y = p.y(n, o);
        ForEachRow(p.grid, [&](int64_t from, int64_t to, int64_t count, int64_t k) {
          for (int64_t j = 0; j < count; ++j) x[to + j * stride] += w[k] * y[from + j];
        });
      }
    }
  });
}

void LoopW(const Planes& p) {
  const int64_t of_group = p.s.w.dims[1], stride = p.grid.stride[2];
  ParallelFor(p.s.out_channels() * of_group, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t o = i / of_group, c = i % of_group;
      double* w = p.w(o, c);
      std::fill(w, p.w(o, c) + p.grid.kernel[0] * p.grid.kernel[1] * p.grid.kernel[2], 0.0);
      for (int64_t n = 0; n < p.s.n(); ++n) {
        const double *x = p.x(n, p.group_of_output(o) * of_group + c), *dy = p.y(n, o);
        ForEachRow(p.grid, [&](int64_t row, int64_t from, int64_t count, int64_t k) {
          for (int64_t j = 0; j < count; ++j) w[k] += dy[row + j] * x[from + j * stride];
        });
      }
    }
  });
}

// The result where there is nothing to multiply.
void FillWithBias(const TensorView& bias, const TensorView& image) {
  if (bias.data == nullptr) return kPointwise.Fill(0, image);
  kShape.Broadcast(bias, {1}, image);
}

void Convolution(const TensorView& x, const TensorView& w, const TensorView& bias, const ConvolutionWindow& window,
                 const TensorView& y) {
  const Shapes s{x, w, y};
  TACC_KERNEL_CHECK(x.dtype == w.dtype && x.dtype == y.dtype && w.dims[0] == y.dims[1]);
  if (s.is_empty()) return FillWithBias(bias, y);
  const bool is_product = IsProduct(s, window);
  if (!is_product && x.dtype == DType::kF64) return LoopY({s, GridOf(s, window)}, bias);
  const Operand weight(w);
  if (is_product) return MultiplyEach(WeightMatrix(weight.view()), x, bias, y);
  const Operand image(x), summand(bias);
  std::optional<at::Tensor> summands;
  if (bias.data != nullptr) summands = summand.tensor();
  Put(at::convolution(image.tensor(), weight.tensor(), summands, Ref(window.stride), Ref(window.padding),
                      Ref(window.dilation), /*transposed=*/false, /*output_padding=*/{0}, s.groups()),
      y);
}

// One of the gradients by LibTorch, which reads no more than the dims of the tensor that has it.
at::Tensor Gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, const ConvolutionWindow& window,
                    int64_t groups, std::array<bool, 3> wanted) {
  const auto gradients =
      at::convolution_backward(dy, x, w, std::nullopt, Ref(window.stride), Ref(window.padding), Ref(window.dilation),
                               /*transposed=*/false, /*output_padding=*/{0}, groups, wanted);
  return wanted[0] ? std::get<0>(gradients) : std::get<1>(gradients);
}

// In bf16 oneDNN lays a transposed w out anew for each image: it pays from so many elements of a channel on.
// (ResNet-50's shapes on an Intel Xeon, November 2026: 14 x 14 took 1.0 to 1.4 times as long as the convolution's
// gradient, 28 x 28 0.6 times.)
constexpr int64_t kTransposedElements = 400;

void ConvolutionTransposed(const TensorView& y, const TensorView& w, const TensorView& bias,
                           const ConvolutionWindow& window, const TensorView& x) {
  const Shapes s{x, w, y};
  TACC_KERNEL_CHECK(x.dtype == w.dtype && x.dtype == y.dtype && w.dims[0] == y.dims[1]);
  if (s.is_empty()) return FillWithBias(bias, x);
  const bool is_slow = ComputeType(x.dtype) == DType::kBF16 && s.spatial() < kTransposedElements;
  const bool is_product = IsProduct(s, window) && !is_slow;
  if (!is_product && x.dtype == DType::kF64) return LoopX({s, GridOf(s, window)}, bias);
  const Operand weight(w);
  if (is_product) return MultiplyEach(WeightMatrix(weight.view()).t(), y, bias, x);
  const Operand images(y), summand(bias);
  const at::Tensor dims = at::from_blob(x.data, Ref(x.dims), AtenOptions(images.view().dtype));
  at::Tensor result = Gradient(images.tensor(), dims, weight.tensor(), window, s.groups(), {true, false, false});
  if (bias.data != nullptr) result.add_(Broadcast(summand, x.dims.rank()));
  Put(result, x);
}

void ConvolutionGradWeight(const TensorView& dy, const TensorView& x, const ConvolutionWindow& window,
                           const TensorView& dw) {
  const Shapes s{x, dw, dy};
  TACC_KERNEL_CHECK(x.dtype == dy.dtype && dw.dims[0] == dy.dims[1]);
  if (s.is_empty()) return kPointwise.Fill(0, dw);
  if (IsProduct(s, window) && dw.dtype == x.dtype && ComputeType(x.dtype) == x.dtype) return SumProducts(dy, x, dw);
  if (x.dtype == DType::kF64) return LoopW({s, GridOf(s, window)});
  const Operand gradient(dy), image(x);
  const at::Tensor dims = at::from_blob(dw.data, Ref(dw.dims), AtenOptions(image.view().dtype));
  Put(Gradient(gradient.tensor(), image.tensor(), dims, window, s.groups(), {false, true, false}), dw);
}

}  // namespace

const ConvolutionKernels kConvolution = {
    .Convolution = Convolution,
    .ConvolutionTransposed = ConvolutionTransposed,
    .ConvolutionGradWeight = ConvolutionGradWeight,
};

}  // namespace tacc::kernels::cpu
