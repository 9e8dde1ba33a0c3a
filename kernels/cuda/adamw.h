// AdamW of kernels/cpu/adamw.h on the GPU: the same function and contract, on device memory; and the updates of many
// parameters in one launch.
#ifndef TACC_KERNELS_CUDA_ADAMW_H_
#define TACC_KERNELS_CUDA_ADAMW_H_

#include <vector>

#include "kernels/cpu/adamw.h"
#include "kernels/cuda/launch/tensor_table.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::AdamWParameters;
using cpu::AdamWScalars;

void AdamW(const TensorView& w, const TensorView& m, const TensorView& v, const TensorView& g,
           const AdamWScalars& scalars, const AdamWParameters& parameters, const TensorView& new_w,
           const TensorView& new_m, const TensorView& new_v, const TensorView& copy);

// What one call of AdamW takes.
struct AdamWUpdate {
  TensorView w, m, v, g;
  AdamWScalars scalars;
  AdamWParameters parameters;
  TensorView new_w, new_m, new_v, copy;
};

TensorTable AdamWTable(const std::vector<AdamWUpdate>& updates);

// All updates in one launch; to the bit what AdamW makes of each.
void AdamWMany(const TensorTable& table);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ADAMW_H_
