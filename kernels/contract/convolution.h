// Convolutions of images. Shapes: N samples, C input and O output channels, G groups, 1 to 3 spatial dims; x
// [N,C,spatial...], w [O,C/G,kernel...], y [N,O,windows...] of one type. The groups follow from the dims.
#ifndef TACC_KERNELS_CONTRACT_CONVOLUTION_H_
#define TACC_KERNELS_CONTRACT_CONVOLUTION_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

// How windows lie: an entry a spatial dim; padding is on both sides.
struct ConvolutionWindow {
  Dims stride, padding, dilation;
};

struct ConvolutionKernels {
  // y[n,o,p] = bias[o] + sum over channels c of o's group and elements k of the kernel of w[o,c,k] x[n,c,at(p,k)],
  // with at(p,k) = p stride - padding + k dilation; x is zero outside. bias [O]; null data: none.
  void (&Convolution)(const TensorView& x, const TensorView& w, const TensorView& bias, const ConvolutionWindow& window,
                      const TensorView& y);

  // The transposed: x[n,c,s] = bias[c] + sum over all (o, p, k) with at(p,k) = s of w[o,c,k] y[n,o,p]. It is the
  // gradient of x. bias [C]; null data: none.
  void (&ConvolutionTransposed)(const TensorView& y, const TensorView& w, const TensorView& bias,
                                const ConvolutionWindow& window, const TensorView& x);

  // dw[o,c,k] = sum over n and p of dy[n,o,p] x[n,c,at(p,k)]. dw may be of a wider type.
  void (&ConvolutionGradWeight)(const TensorView& dy, const TensorView& x, const ConvolutionWindow& window,
                                const TensorView& dw);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_CONVOLUTION_H_
