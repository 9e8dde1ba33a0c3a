#ifndef TACC_WORKER_RANK_CUDA_DEVICE_RUNS_H_
#define TACC_WORKER_RANK_CUDA_DEVICE_RUNS_H_

#include "kernels/cuda/collective.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {

// A region as kernels/cuda copies it.
inline kernels::cuda::Runs RunsOf(const Region& region) {
  return {region.data, region.run_bytes, region.IsContiguous() ? region.run_bytes : region.stride_bytes};
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_DEVICE_RUNS_H_
