// Convolutions by LibTorch: cuDNN's, whose workspace is LibTorch's allocator's.
#include "kernels/contract/convolution.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <array>
#include <optional>
#include <vector>

#include "kernels/contract/pointwise.h"
#include "kernels/contract/shape.h"
#include "kernels/cuda/aten.h"
#include "kernels/cuda/kernels.h"

namespace tacc::kernels::cuda {
namespace {

c10::IntArrayRef Ref(const Dims& dims) { return {dims.begin(), static_cast<size_t>(dims.rank())}; }
at::Tensor Whole(const TensorView& x) { return TensorIn(x.data, Ref(x.dims), x.dtype); }

int64_t Groups(const TensorView& x, const TensorView& w) { return w.dims[1] == 0 ? 1 : x.dims[1] / w.dims[1]; }

bool IsEmpty(const TensorView& x, const TensorView& w, const TensorView& y) {
  return x.size() == 0 || w.size() == 0 || y.size() == 0;
}

// The result where there is nothing to multiply.
void FillWithBias(const TensorView& bias, const TensorView& image) {
  if (bias.data == nullptr) return kPointwise.Fill(0, image);
  kShape.Broadcast(bias, {1}, image);
}

// One of the gradients. LibTorch reads no more than the dims of the tensor that has it.
at::Tensor Gradient(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& w, const ConvolutionWindow& window,
                    int64_t groups, std::array<bool, 3> wanted) {
  const auto gradients =
      at::convolution_backward(dy, x, w, std::nullopt, Ref(window.stride), Ref(window.padding), Ref(window.dilation),
                               /*transposed=*/false, /*output_padding=*/{0}, groups, wanted);
  return wanted[0] ? std::get<0>(gradients) : std::get<1>(gradients);
}

void Convolution(const TensorView& x, const TensorView& w, const TensorView& bias, const ConvolutionWindow& window,
                 const TensorView& y) {
  if (IsEmpty(x, w, y)) return FillWithBias(bias, y);
  std::optional<at::Tensor> summands;
  if (bias.data != nullptr) summands = Whole(bias);
  Whole(y).copy_(at::convolution(Whole(x), Whole(w), summands, Ref(window.stride), Ref(window.padding),
                                 Ref(window.dilation), /*transposed=*/false, /*output_padding=*/{0}, Groups(x, w)));
}

void ConvolutionTransposed(const TensorView& y, const TensorView& w, const TensorView& bias,
                           const ConvolutionWindow& window, const TensorView& x) {
  if (IsEmpty(x, w, y)) return FillWithBias(bias, x);
  at::Tensor result = Gradient(Whole(y), Whole(x), Whole(w), window, Groups(x, w), {true, false, false});
  if (bias.data != nullptr) {
    std::vector<int64_t> dims(x.dims.rank(), 1);
    dims[1] = bias.size();
    result.add_(Whole(bias).view(dims));
  }
  Whole(x).copy_(result);
}

void ConvolutionGradWeight(const TensorView& dy, const TensorView& x, const ConvolutionWindow& window,
                           const TensorView& dw) {
  if (IsEmpty(x, dw, dy)) return kPointwise.Fill(0, dw);
  const at::Tensor dims = TensorIn(dw.data, Ref(dw.dims), x.dtype);
  Whole(dw).copy_(Gradient(Whole(dy), Whole(x), dims, window, Groups(x, dw), {false, true, false}));
}

}  // namespace

const ConvolutionKernels kConvolution = {
    .Convolution = Convolution,
    .ConvolutionTransposed = ConvolutionTransposed,
    .ConvolutionGradWeight = ConvolutionGradWeight,
};

}  // namespace tacc::kernels::cuda
