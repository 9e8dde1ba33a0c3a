#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_SHARED_GPU_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_SHARED_GPU_H_

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/collectives/collectives.h"

namespace tacc::worker {

// A GPU's UUID, which no other GPU has.
using GpuId = std::array<uint64_t, 2>;

// "ranks 1 and 3 run on one GPU", for the first two that do; empty if each rank has a GPU of its own. NCCL refuses two
// ranks on one GPU: all of the attempt then talk by way of the host (StagedCollectives). All ranks call it, each with
// its own GPU, and get the same answer. `host` is connected.
absl::StatusOr<std::string> FindSharedGpu(Collectives& host, const GpuId& gpu);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_SHARED_GPU_H_
