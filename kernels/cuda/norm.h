// The norms of kernels/cpu/norm.h on the GPU: the same functions and contracts, on device memory.
#ifndef TACC_KERNELS_CUDA_NORM_H_
#define TACC_KERNELS_CUDA_NORM_H_

#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

void RmsNorm(const TensorView& x, const TensorView& w, double eps, const TensorView& y, const TensorView& rstd);
void AddRmsNorm(const TensorView& a, const TensorView& b, const TensorView& w, double eps, const TensorView& y,
                const TensorView& rstd, const TensorView& sum);
void RmsNormGrad(const TensorView& dy, const TensorView& x, const TensorView& w, const TensorView& rstd,
                 const TensorView& dx, const TensorView& dw, const TensorView& copy = {});
void RmsNormGradAccumulate(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& w,
                           const TensorView& rstd, const TensorView& out, const TensorView& dw,
                           const TensorView& copy = {});

void LayerNorm(const TensorView& x, const TensorView& w, const TensorView& b, double eps, const TensorView& y,
               const TensorView& mean, const TensorView& rstd);
void AddLayerNorm(const TensorView& a, const TensorView& b, const TensorView& w, const TensorView& bias, double eps,
                  const TensorView& y, const TensorView& mean, const TensorView& rstd, const TensorView& sum);
void LayerNormGrad(const TensorView& dy, const TensorView& x, const TensorView& mean, const TensorView& rstd,
                   const TensorView& w, const TensorView& dx, const TensorView& dw, const TensorView& db,
                   const TensorView& copy = {});
void LayerNormGradAccumulate(const TensorView& acc, const TensorView& dy, const TensorView& x, const TensorView& mean,
                             const TensorView& rstd, const TensorView& w, const TensorView& out, const TensorView& dw,
                             const TensorView& db, const TensorView& copy = {});

void L2Normalize(const TensorView& x, double eps, const TensorView& y, const TensorView& rnorm);
void L2NormalizeGrad(const TensorView& dy, const TensorView& x, const TensorView& rnorm, double eps,
                     const TensorView& dx);

// Scratch of the gradients: as kernels/cpu/norm.h.
int64_t NormGradWorkspaceBytes(int64_t num_rows, int64_t row_length, int num_sums, DType compute);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_NORM_H_
