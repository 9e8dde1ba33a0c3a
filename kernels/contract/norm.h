// Norms over the last dim. Legend: R rows (all leading dims), N features.
// Statistics (mean, rstd) are stored in the dtype of their views: f32, or f64 in an f64 run.
#ifndef TACC_KERNELS_CONTRACT_NORM_H_
#define TACC_KERNELS_CONTRACT_NORM_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

struct NormKernels {
  // y = cast(x * rstd, dtype of x) * w with rstd = 1 / sqrt(mean(x^2) + eps). x, y [R,N]; w [N]; rstd [R].
  void (&RmsNorm)(const TensorView& x, const TensorView& w, double eps, const TensorView& y, const TensorView& rstd);

  // The same of x = sum, with sum = a + b [R,N] made on the way, rounded to its dtype. sum and y may be a and b, or the
  // other way round.
  void (&AddRmsNorm)(const TensorView& a, const TensorView& b, const TensorView& w, double eps, const TensorView& y,
                     const TensorView& rstd, const TensorView& sum);

  // dx [R,N], dw [N] (summed over rows in an order fixed by the dims alone). copy [R,N], of every gradient here: dx as
  // it is stored, cast to copy's narrower dtype, to the bit; null data: not wanted; it may be dy.
  void (&RmsNormGrad)(const TensorView& dy, const TensorView& x, const TensorView& w, const TensorView& rstd,
                      const TensorView& dx, const TensorView& dw, const TensorView& copy);

  // out = acc + dx, with dx rounded to its dtype first; the rest as above. acc, out [R,N], of dtypes like x; out may be
  // acc.
  void (&RmsNormGradAccumulate)(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& w,
                                const TensorView& rstd, const TensorView& out, const TensorView& dw,
                                const TensorView& copy);

  // y = (x - mean) * rstd [* w [+ b]]; a view with null data is an absent weight or bias.
  void (&LayerNorm)(const TensorView& x, const TensorView& w, const TensorView& b, double eps, const TensorView& y,
                    const TensorView& mean, const TensorView& rstd);

  // As AddRmsNorm.
  void (&AddLayerNorm)(const TensorView& a, const TensorView& b, const TensorView& w, const TensorView& bias,
                       double eps, const TensorView& y, const TensorView& mean, const TensorView& rstd,
                       const TensorView& sum);

  // Null data: no weight (w), gradient not wanted (dw, db).
  void (&LayerNormGrad)(const TensorView& dy, const TensorView& x, const TensorView& mean, const TensorView& rstd,
                        const TensorView& w, const TensorView& dx, const TensorView& dw, const TensorView& db,
                        const TensorView& copy);

  // As RmsNormGradAccumulate.
  void (&LayerNormGradAccumulate)(const TensorView& acc, const TensorView& dy, const TensorView& x,
                                  const TensorView& mean, const TensorView& rstd, const TensorView& w,
                                  const TensorView& out, const TensorView& dw, const TensorView& db,
                                  const TensorView& copy);

  // y = x * rnorm with rnorm = 1 / max(|x|, eps), one a row.
  void (&L2Normalize)(const TensorView& x, double eps, const TensorView& y, const TensorView& rnorm);
  void (&L2NormalizeGrad)(const TensorView& dy, const TensorView& x, const TensorView& rnorm, double eps,
                          const TensorView& dx);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_NORM_H_
