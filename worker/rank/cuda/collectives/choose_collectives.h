#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_CHOOSE_COLLECTIVES_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_CHOOSE_COLLECTIVES_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "worker/rank/cuda/collectives/device_collectives.h"
#include "worker/rank/cuda/collectives/shared_gpu.h"
#include "worker/rank/gpu/gpu_module.h"

namespace tacc::worker {

// A rank's GPU.
struct RankGpu {
  Device* device = nullptr;  // Must outlive the talk.
  std::function<absl::StatusOr<GpuId>()> id;
  // NCCL on it.
  std::function<absl::StatusOr<std::unique_ptr<Communication>>()> make_communication;
};

// GpuModule::ChooseTalk: collectives that are queued on the GPUs where each rank has one of its own; else, on all
// ranks, by way of the host's memory, which is right but slow. No CUDA in this function.
absl::StatusOr<RankTalk> ChooseCollectives(const RankTalkOptions& options, const RankGpu& gpu);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_CHOOSE_COLLECTIVES_H_
