// What normalizations by channel consist of. Shapes: x and z [N,C,...], with anything behind the channels; numbers of
// channels are [C], of any floating type.
#ifndef TACC_KERNELS_CONTRACT_CHANNEL_H_
#define TACC_KERNELS_CONTRACT_CHANNEL_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

// How running statistics go on: by so much of the batch's of `count` numbers.
struct MomentsParameters {
  double count = 0;
  double momentum = 0;
};

struct ChannelKernels {
  // Of each channel the sum of x, and that of x z (null data: x x), with f64 accumulators, in an order fixed by the
  // dims alone.
  void (&ChannelSums)(const TensorView& x, const TensorView& z, const TensorView& sums, const TensorView& products);

  // y = a[c] x + b[c] z + offset[c]. Null data: without z and b, without offset. y may be x or z.
  void (&ChannelAffine)(const TensorView& x, const TensorView& a, const TensorView& z, const TensorView& b,
                        const TensorView& offset, const TensorView& y);

  // mean = sums / count, variance = products / count - mean^2, at least 0. Null data: no running statistics; else
  // new = (1 - momentum) running + momentum times the mean, or the variance times count / (count - 1). May be in place.
  void (&BatchMoments)(const TensorView& sums, const TensorView& products, const TensorView& running_mean,
                       const TensorView& running_variance, const MomentsParameters& parameters, const TensorView& mean,
                       const TensorView& variance, const TensorView& new_mean, const TensorView& new_variance);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_CHANNEL_H_
