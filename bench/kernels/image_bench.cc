// ResNet-50's convolutions and batch norms by the CPU's kernels beside LibTorch's operators, which eager PyTorch calls:
// forward, and the gradients of what is read and of weights, each side in turns, the best of several. Prints a row a
// shape, and at the end what all layers of the model take.
//   ninja -C build image_bench && build/image_bench [SAMPLES] [REPEATS]
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>

#include "kernels/contract/kernels.h"
#include "kernels/cpu/kernels.h"

namespace tacc::kernels::cpu {
namespace {

struct Layer {
  int64_t in, out, kernel, stride, size;  // size: of the image that is read
  int count;                              // in the model
};

constexpr Layer kLayers[] = {
    {3, 64, 7, 2, 224, 1},     {64, 64, 1, 1, 56, 1},    {64, 64, 3, 1, 56, 3},    {64, 256, 1, 1, 56, 4},
    {256, 64, 1, 1, 56, 2},    {256, 128, 1, 1, 56, 1},  {128, 128, 3, 2, 56, 1},  {128, 512, 1, 1, 28, 4},
    {256, 512, 1, 2, 56, 1},   {512, 128, 1, 1, 28, 3},  {128, 128, 3, 1, 28, 3},  {512, 256, 1, 1, 28, 1},
    {256, 256, 3, 2, 28, 1},   {256, 1024, 1, 1, 14, 6}, {512, 1024, 1, 2, 28, 1}, {1024, 256, 1, 1, 14, 5},
    {256, 256, 3, 1, 14, 5},   {1024, 512, 1, 1, 14, 1}, {512, 512, 3, 2, 14, 1},  {512, 2048, 1, 1, 7, 3},
    {1024, 2048, 1, 2, 14, 1}, {2048, 512, 1, 1, 7, 2},  {512, 512, 3, 1, 7, 2},
};

// A tensor of LibTorch's and the view of it.
struct Data {
  at::Tensor tensor;
  TensorView view;

  Data(DType dtype, const Dims& dims) {
    const at::ScalarType type = dtype == DType::kBF16 ? at::kBFloat16 : dtype == DType::kF64 ? at::kDouble : at::kFloat;
    tensor = at::randn(at::IntArrayRef(dims.begin(), dims.rank()), at::kFloat).to(type);
    view = {tensor.data_ptr(), dtype, dims};
  }
};

// Best seconds of each side.
struct Pair {
  double ours = 0, theirs = 0;

  Pair& operator+=(const Pair& other) {
    ours += other.ours, theirs += other.theirs;
    return *this;
  }
  Pair operator*(int count) const { return {ours * count, theirs * count}; }
};

// Of processors, all threads together: what else the machine does costs neither side.
double SecondsOf(const std::function<void()>& run) {
  const std::clock_t start = std::clock();
  run();
  return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
}

Pair Compare(int repeats, const std::function<void()>& ours, const std::function<void()>& theirs) {
  ours();
  theirs();
  Pair best{std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  for (int i = 0; i < repeats; ++i) {
    best.ours = std::min(best.ours, SecondsOf(ours));
    best.theirs = std::min(best.theirs, SecondsOf(theirs));
  }
  return best;
}

void Print(const char* what, const Pair& forward, const Pair& dx, const Pair& dw) {
  Pair all = forward;
  all += dx, all += dw;
  const auto ms = [](const Pair& p) { return p.ours * 1e3; };
  const auto ratio = [](const Pair& p) { return p.ours > 0 ? p.theirs / p.ours : 0; };
  std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n", what, ms(forward), ratio(forward), ms(dx),
              ratio(dx), ms(dw), ratio(dw), ratio(all));
  std::fflush(stdout);
}

struct Sums {
  Pair forward, dx, dw;
};

void Convolve(DType dtype, int64_t samples, int repeats, const Layer& l, Sums& sums) {
  const int64_t windows = (l.size - 1) / l.stride + 1, pad = l.kernel / 2;
  const ConvolutionWindow window{{l.stride, l.stride}, {pad, pad}, {1, 1}};
  Data x(dtype, {samples, l.in, l.size, l.size}), w(dtype, {l.out, l.in, l.kernel, l.kernel});
  Data y(dtype, {samples, l.out, windows, windows}), dy(dtype, y.view.dims), dx(dtype, x.view.dims);
  Data dw(DType::kF32, w.view.dims);
  const std::vector<int64_t> stride{l.stride, l.stride}, padding{pad, pad}, dilation{1, 1}, none{0, 0};
  const auto gradient = [&](std::array<bool, 3> mask) {
    return at::convolution_backward(dy.tensor, x.tensor, w.tensor, std::nullopt, stride, padding, dilation, false, none,
                                    1, mask);
  };
  at::Tensor result;
  const Pair forward = Compare(
      repeats, [&] { kConvolution.Convolution(x.view, w.view, {}, window, y.view); },
      [&] { result = at::convolution(x.tensor, w.tensor, std::nullopt, stride, padding, dilation, false, none, 1); });
  const Pair of_x = Compare(
      repeats, [&] { kConvolution.ConvolutionTransposed(dy.view, w.view, {}, window, dx.view); },
      [&] { result = std::get<0>(gradient({true, false, false})); });
  const Pair of_w = Compare(
      repeats, [&] { kConvolution.ConvolutionGradWeight(dy.view, x.view, window, dw.view); },
      [&] { result = std::get<1>(gradient({false, true, false})).to(at::kFloat); });
  char name[96];
  std::snprintf(name, sizeof(name), "%ld x %ld to %ld, %ld x %ld / %ld", l.size, l.in, l.out, l.kernel, l.kernel,
                l.stride);
  Print(name, forward, of_x, of_w);
  sums.forward += forward * l.count, sums.dw += of_w * l.count;
  if (l.in > 3) sums.dx += of_x * l.count;  // nobody asks for an image's gradient
}

void Normalize(DType dtype, int64_t samples, int repeats, const Layer& l, Sums& sums) {
  const int64_t size = (l.size - 1) / l.stride + 1, c = l.out;
  Data x(dtype, {samples, c, size, size}), y(dtype, x.view.dims), dy(dtype, x.view.dims), dx(dtype, x.view.dims);
  Data s(DType::kF64, {c}), q(DType::kF64, {c}), mean(DType::kF64, {c}), variance(DType::kF64, {c});
  Data running_mean(DType::kF32, {c}), running_variance(DType::kF32, {c}), w(DType::kF32, {c}), b(DType::kF32, {c});
  const MomentsParameters parameters{static_cast<double>(samples * size * size), 0.1};
  at::Tensor result, saved_mean, saved_rstd;
  const Pair forward = Compare(
      repeats,
      [&] {
        kChannel.ChannelSums(x.view, {}, s.view, q.view);
        kChannel.BatchMoments(s.view, q.view, running_mean.view, running_variance.view, parameters, mean.view,
                              variance.view, running_mean.view, running_variance.view);
        kChannel.ChannelAffine(x.view, w.view, {}, {}, b.view, y.view);
      },
      [&] {
        std::tie(result, saved_mean, saved_rstd) = at::native_batch_norm(
            x.tensor, w.tensor, b.tensor, running_mean.tensor, running_variance.tensor, true, 0.1, 1e-5);
      });
  const Pair gradients = Compare(
      repeats,
      [&] {
        kChannel.ChannelSums(dy.view, x.view, s.view, q.view);
        kChannel.ChannelAffine(dy.view, w.view, x.view, mean.view, b.view, dx.view);
      },
      [&] {
        result = std::get<0>(at::native_batch_norm_backward(dy.tensor, x.tensor, w.tensor, running_mean.tensor,
                                                            running_variance.tensor, saved_mean, saved_rstd, true, 1e-5,
                                                            {true, true, true}));
      });
  sums.forward += forward * l.count, sums.dx += gradients * l.count;
}

void Run(DType dtype, int64_t samples, int repeats) {
  std::printf("\n%s, %ld samples. Milliseconds of processors, and how many times LibTorch's are that.\n", Name(dtype),
              samples);
  std::printf(
      "| layer | y | ratio | dx | ratio | dw | ratio | all |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n");
  Sums convolutions, norms;
  for (const Layer& l : kLayers) Convolve(dtype, samples, repeats, l, convolutions);
  Print("all convolutions", convolutions.forward, convolutions.dx, convolutions.dw);
  for (const Layer& l : kLayers) Normalize(dtype, samples, repeats, l, norms);
  Print("all batch norms", norms.forward, norms.dx, {});
}

}  // namespace
}  // namespace tacc::kernels::cpu

int main(int argc, char** argv) {
  const int64_t samples = argc > 1 ? std::atoll(argv[1]) : 8;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 5;
  tacc::kernels::cpu::Run(tacc::kernels::DType::kF32, samples, repeats);
  tacc::kernels::cpu::Run(tacc::kernels::DType::kBF16, samples, repeats);
}
