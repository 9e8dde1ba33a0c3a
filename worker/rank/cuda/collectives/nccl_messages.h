#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_NCCL_MESSAGES_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_NCCL_MESSAGES_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/cuda/launch/stream.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/cuda/collectives/communication.h"
#include "worker/rank/cuda/collectives/shared_gpu.h"
#include "worker/rank/device/device.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {

struct NcclOptions {
  int gpu = 0;                              // Of CUDA, in this process.
  Device* device = nullptr;                 // On that GPU.
  kernels::cuda::Stream compute = nullptr;  // Where the device queues its work.
  // A place in a stream of the GPU whose time counts with those of the device's marks.
  std::function<absl::StatusOr<std::unique_ptr<Device::Mark>>(kernels::cuda::Stream)> create_timed_mark;
  Collectives* host = nullptr;  // Connected: by it the ranks find each other.
  // Of connecting, and of each collective or message from its start on the GPU to its end.
  absl::Duration timeout;
  StatusBlock* status = nullptr;  // Shows where the GPU is; may be null.
};

// The GPU of this number.
absl::StatusOr<GpuId> GpuIdOf(int gpu);

// The talk between ranks by NCCL, each on a GPU of its own (FindSharedGpu): one communicator of all ranks for
// collectives, and one of two ranks for each channel of messages. All that options name must outlive it.
//
// Connect also sends a first message through each channel, so that what it takes to connect is taken then.
//
// A thread watches (CallWatch): when what the GPU has begun has not ended within the time-out, or NCCL reports an
// error, all communicators are aborted, what waits on the GPU for other ranks ends (with undefined values), and Check
// says why. That holds for recorded work too. After that nothing more can be done than to end the process; the ranks
// meet again in new ones. (To destroy the object would wait for all recordings that talk to be gone, and for the GPU.)
//
// For messages CUDA_DEVICE_MAX_CONNECTIONS must be 32 before CUDA starts: with fewer queues in hardware than streams
// that wait, one that waits for another rank may hold up one that this rank waits for.
//
// To be destroyed when the device is idle and after all recordings that talk: NCCL waits for their end. While the
// device records, the mode of recording must leave other threads alone (cudaStreamCaptureModeThreadLocal).
absl::StatusOr<std::unique_ptr<Communication>> CreateNcclCommunication(const NcclOptions& options);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_NCCL_MESSAGES_H_
