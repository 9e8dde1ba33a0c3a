// kernels/contract/channel.h. A channel is summed by several teams where there are few channels; how many depends on
// the dims alone.
#include <algorithm>

#include "kernels/contract/channel.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/load.h"
#include "kernels/cuda/launch/sum_groups.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/workspace.h"

namespace tacc::kernels::cuda {
namespace {

constexpr int kTeam = 256;
constexpr int64_t kEnoughTeams = 1024;  // keep a large GPU busy
constexpr int64_t kLeastOfTeam = 2048;  // elements that are worth a team

int64_t NumParts(int64_t channels, int64_t of_channel) {
  return std::max<int64_t>(1, std::min(kEnoughTeams / std::max<int64_t>(channels, 1), of_channel / kLeastOfTeam));
}

template <typename T>
struct SumsOfPart {
  AnyIn x, z;
  double *sums, *products;  // [parts, C]
  int64_t channels, spatial, of_channel, parts;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    const int64_t c = index % channels, part = index / channels;
    const int64_t end = of_channel * (part + 1) / parts;
    double sum = 0, product = 0;
    for (int64_t i = of_channel * part / parts + team.rank(); i < end; i += team.size()) {
      const int64_t at = (i / spatial * channels + c) * spatial + i % spatial;
      const auto value = static_cast<double>(x.Load<T>(at));
      sum += value;
      product += value * static_cast<double>(z.Load<T>(at));
    }
    sum = team.Sum(sum);
    product = team.Sum(product);
    if (team.rank() != 0) return;
    sums[index] = sum;
    products[index] = product;
  }
};

template <typename T>
struct AffineElement {
  AnyIn x, a, z, b, offset;
  AnyOut y;
  int64_t channels, spatial;

  TACC_DEVICE void operator()(int64_t i) const {
    const int64_t c = i / spatial % channels;
    T value = offset.data == nullptr ? T(0) : offset.Load<T>(c);
    if (z.data != nullptr) value += b.Load<T>(c) * z.Load<T>(i);
    y.Store(i, a.Load<T>(c) * x.Load<T>(i) + value);
  }
};

struct MomentsOfChannel {
  AnyIn sums, products, running_mean, running_variance;
  MomentsParameters p;
  AnyOut mean, variance, new_mean, new_variance;

  TACC_DEVICE void operator()(int64_t c) const {
    const double m = sums.Load<double>(c) / p.count;
    double v = products.Load<double>(c) / p.count - m * m;
    v = v < 0 ? 0 : v;  // NaN stays
    mean.Store(c, m);
    variance.Store(c, v);
    if (running_mean.data == nullptr) return;
    new_mean.Store(c, (1 - p.momentum) * running_mean.Load<double>(c) + p.momentum * m);
    new_variance.Store(
        c, (1 - p.momentum) * running_variance.Load<double>(c) + p.momentum * v * (p.count / (p.count - 1)));
  }
};

void ChannelSums(const TensorView& x, const TensorView& z, const TensorView& sums, const TensorView& products) {
  const TensorView& factor = z.data == nullptr ? x : z;
  const int64_t channels = x.dims[1], spatial = x.dims.Product(2, x.dims.rank()), of_channel = x.dims[0] * spatial;
  TACC_KERNEL_CHECK(factor.dims == x.dims && sums.size() == channels && products.size() == channels);
  const int64_t parts = NumParts(channels, of_channel);
  const Scratch scratch(ChannelSumsWorkspaceBytes(channels, of_channel));
  auto* partial = static_cast<double*>(scratch.data());
  double* partial_products = partial + parts * channels;
  WithComputeType({x, factor}, [&](auto zero) {
    ForEachTeam<kTeam>(
        channels * parts, kTeam, 0,
        SumsOfPart<decltype(zero)>{In(x), In(factor), partial, partial_products, channels, spatial, of_channel, parts});
  });
  SumGroups(partial, parts, channels, Out(sums));
  SumGroups(partial_products, parts, channels, Out(products));
}

void ChannelAffine(const TensorView& x, const TensorView& a, const TensorView& z, const TensorView& b,
                   const TensorView& offset, const TensorView& y) {
  const int64_t channels = x.dims[1], spatial = x.dims.Product(2, x.dims.rank());
  TACC_KERNEL_CHECK(y.dims == x.dims && (z.data == nullptr || z.dims == x.dims));
  WithComputeType({x, z}, [&](auto zero) {
    ForEach(x.size(), AffineElement<decltype(zero)>{In(x), In(a), In(z), In(b), In(offset), Out(y), channels, spatial});
  });
}

void BatchMoments(const TensorView& sums, const TensorView& products, const TensorView& running_mean,
                  const TensorView& running_variance, const MomentsParameters& parameters, const TensorView& mean,
                  const TensorView& variance, const TensorView& new_mean, const TensorView& new_variance) {
  ForEach(sums.size(), MomentsOfChannel{In(sums), In(products), In(running_mean), In(running_variance), parameters,
                                        Out(mean), Out(variance), Out(new_mean), Out(new_variance)});
}

}  // namespace

int64_t ChannelSumsWorkspaceBytes(int64_t channels, int64_t of_channel) {
  return 2 * NumParts(channels, of_channel) * channels * static_cast<int64_t>(sizeof(double));
}

const ChannelKernels kChannel = {
    .ChannelSums = ChannelSums,
    .ChannelAffine = ChannelAffine,
    .BatchMoments = BatchMoments,
};

}  // namespace tacc::kernels::cuda
