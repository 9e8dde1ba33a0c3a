// AdamW of kernels/cpu/adamw.h on the GPU: the same function and contract, on device memory; and the updates of many
// parameters in one launch.
#ifndef TACC_KERNELS_CUDA_ADAMW_H_
#define TACC_KERNELS_CUDA_ADAMW_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/adamw.h"
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

// How many of the first updates may run in one launch, in any order: none writes what another one reads or writes. (A
// planned program may give one update's result the memory of an earlier one's gradient.)
int64_t NumIndependent(const std::vector<AdamWUpdate>& updates);

// Independent updates, prepared once and run any number of times: nothing is read from the host
// when they run. Before the first run, `image` is copied to device memory (its address a multiple of 16, image.size()
// bytes) and `device` set to it; both must live as long as runs may be queued. Empty if there are no updates.
struct AdamWTable {
  std::vector<char> image;
  int64_t num_updates = 0;
  int64_t num_chunks = 0;
  const void* device = nullptr;
};

AdamWTable MakeAdamWTable(const std::vector<AdamWUpdate>& updates);

// All updates in one launch; to the bit what AdamW makes of each.
void AdamWMany(const AdamWTable& table);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_ADAMW_H_
