#include "kernels/contract/channel.h"

#include <algorithm>
#include <vector>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

constexpr int64_t kGrain = 16384;     // elements a thread works on at least
constexpr int64_t kFewElements = 16;  // of a channel of an image: several channels are worked on at a time
constexpr int64_t kBlock = 512;

// x as [N,C,S].
struct Extents {
  int64_t n, c, s;

  explicit Extents(const TensorView& x) : n(x.dims[0]), c(x.dims[1]), s(x.dims.Product(2, x.dims.rank())) {}
  int64_t row() const { return c * s; }
};

// Of each channel; 0 where there is nothing.
std::vector<double> Numbers(const TensorView& x, int64_t channels) {
  std::vector<double> numbers(channels, 0.0);
  if (x.data == nullptr) return numbers;
  TACC_KERNEL_CHECK(x.size() == channels);
  simd::BestLoops().unary(UnaryOp::kCast, 0, 0, In(x), {numbers.data(), DType::kF64}, 0, channels);
  return numbers;
}

void Write(const std::vector<double>& numbers, const TensorView& y) {
  simd::BestLoops().unary(UnaryOp::kCast, 0, 0, {const_cast<double*>(numbers.data()), DType::kF64}, Out(y), 0,
                          static_cast<int64_t>(numbers.size()));
}

simd::In From(const TensorView& x, int64_t offset) { return {x.as<char>() + offset * SizeOf(x.dtype), x.dtype}; }

void ChannelSums(const TensorView& x, const TensorView& z, const TensorView& sums, const TensorView& products) {
  const TensorView& factor = z.data == nullptr ? x : z;
  const Extents e(x);
  TACC_KERNEL_CHECK(factor.dims == x.dims && sums.size() == e.c && products.size() == e.c);
  std::vector<double> sum(e.c, 0.0), product(e.c, 0.0);
  const simd::Loops& loops = simd::BestLoops();
  if (e.s >= kFewElements) {
    ParallelFor(e.c, 1 + kGrain / (e.n * e.s + 1), [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) {
        for (int64_t n = 0; n < e.n; ++n) {
          const int64_t plane = (n * e.c + c) * e.s;
          loops.add_sums(In(x), In(factor), plane, plane + e.s, &sum[c], &product[c]);
        }
      }
    });
  } else if (e.s > 0) {
    const int64_t few = kBlock / e.s;  // channels
    ParallelFor((e.c + few - 1) / few, 1 + kGrain / (e.n * kBlock + 1), [&](int64_t begin, int64_t end) {
      double a[kBlock], b[kBlock];
      for (int64_t c = begin * few; c < std::min(e.c, end * few); c += few) {
        const int64_t count = std::min(few, e.c - c) * e.s;
        for (int64_t n = 0; n < e.n; ++n) {
          loops.unary(UnaryOp::kCast, 0, 0, From(x, n * e.row() + c * e.s), {a, DType::kF64}, 0, count);
          loops.unary(UnaryOp::kCast, 0, 0, From(factor, n * e.row() + c * e.s), {b, DType::kF64}, 0, count);
          for (int64_t i = 0; i < count; ++i) {
            sum[c + i / e.s] += a[i];
            product[c + i / e.s] += a[i] * b[i];
          }
        }
      }
    });
  }
  Write(sum, sums);
  Write(product, products);
}

void ChannelAffine(const TensorView& x, const TensorView& a, const TensorView& z, const TensorView& b,
                   const TensorView& offset, const TensorView& y) {
  const Extents e(x);
  TACC_KERNEL_CHECK(y.dims == x.dims && (z.data == nullptr || z.dims == x.dims));
  const std::vector<double> of_x = Numbers(a, e.c), of_z = Numbers(b, e.c), offsets = Numbers(offset, e.c);
  const simd::Loops& loops = simd::BestLoops();
  if (e.s >= kFewElements) {
    ParallelFor(e.n * e.c, 1 + kGrain / (e.s + 1), [&](int64_t begin, int64_t end) {
      for (int64_t plane = begin; plane < end; ++plane) {
        const int64_t c = plane % e.c;
        loops.affine({.x = In(x), .a = of_x[c], .z = In(z), .b = of_z[c], .offset = offsets[c], .y = Out(y)},
                     plane * e.s, (plane + 1) * e.s);
      }
    });
    return;
  }
  ParallelFor(e.n, 1 + kGrain / (e.row() + 1), [&](int64_t begin, int64_t end) {
    double from_x[kBlock], from_z[kBlock] = {}, to[kBlock];
    for (int64_t i = begin * e.row(); i < end * e.row(); i += kBlock) {
      const int64_t count = std::min(kBlock, end * e.row() - i);
      loops.unary(UnaryOp::kCast, 0, 0, From(x, i), {from_x, DType::kF64}, 0, count);
      if (z.data != nullptr) loops.unary(UnaryOp::kCast, 0, 0, From(z, i), {from_z, DType::kF64}, 0, count);
      for (int64_t j = 0; j < count; ++j) {
        const int64_t c = (i + j) / e.s % e.c;
        to[j] = of_x[c] * from_x[j] + (of_z[c] * from_z[j] + offsets[c]);
      }
      loops.unary(UnaryOp::kCast, 0, 0, {to, DType::kF64}, {y.as<char>() + i * SizeOf(y.dtype), y.dtype}, 0, count);
    }
  });
}

void BatchMoments(const TensorView& sums, const TensorView& products, const TensorView& running_mean,
                  const TensorView& running_variance, const MomentsParameters& parameters, const TensorView& mean,
                  const TensorView& variance, const TensorView& new_mean, const TensorView& new_variance) {
  const int64_t channels = sums.size();
  const double count = parameters.count, momentum = parameters.momentum;
  std::vector<double> means = Numbers(sums, channels), variances = Numbers(products, channels);
  for (int64_t c = 0; c < channels; ++c) {
    means[c] /= count;
    const double v = variances[c] / count - means[c] * means[c];
    variances[c] = v < 0 ? 0 : v;  // NaN stays
  }
  Write(means, mean);
  Write(variances, variance);
  if (running_mean.data == nullptr) return;
  std::vector<double> old_means = Numbers(running_mean, channels), old_variances = Numbers(running_variance, channels);
  for (int64_t c = 0; c < channels; ++c) {
    old_means[c] = (1 - momentum) * old_means[c] + momentum * means[c];
    old_variances[c] = (1 - momentum) * old_variances[c] + momentum * variances[c] * (count / (count - 1));
  }
  Write(old_means, new_mean);
  Write(old_variances, new_variance);
}

}  // namespace

const ChannelKernels kChannel = {
    .ChannelSums = ChannelSums,
    .ChannelAffine = ChannelAffine,
    .BatchMoments = BatchMoments,
};

}  // namespace tacc::kernels::cpu
