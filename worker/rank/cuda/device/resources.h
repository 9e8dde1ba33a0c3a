// What CUDA makes and must be given back. Giving back fails only where the context is lost, which has been said then.
#ifndef TACC_WORKER_RANK_CUDA_DEVICE_RESOURCES_H_
#define TACC_WORKER_RANK_CUDA_DEVICE_RESOURCES_H_

#include <cuda_runtime_api.h>

#include <new>

#include "absl/status/status.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/cuda/device/errors.h"

// Returns from the function when `call` is an error, with what was being done (CudaStatus).
#define TACC_RETURN_IF_CUDA_ERROR(call, what, gpu) TACC_RETURN_IF_ERROR(CudaStatus(static_cast<int>(call), what, gpu))

namespace tacc::worker {

// A CUDA event without a time.
class Event {
 public:
  Event() = default;
  ~Event() {
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  absl::Status Create(int gpu) {
    TACC_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event", gpu);
    return absl::OkStatus();
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Words in pinned host memory that the GPU writes and the host reads meanwhile.
template <typename T>
class SharedWords {
 public:
  SharedWords() = default;
  ~SharedWords() {
    if (host_ != nullptr) (void)cudaFreeHost(host_);
  }
  SharedWords(const SharedWords&) = delete;
  SharedWords& operator=(const SharedWords&) = delete;
  absl::Status Create(int gpu) {
    void *host = nullptr, *on_device = nullptr;
    TACC_RETURN_IF_CUDA_ERROR(cudaHostAlloc(&host, sizeof(T), cudaHostAllocMapped | cudaHostAllocPortable),
                              "pinned host memory", gpu);
    host_ = new (host) T();
    TACC_RETURN_IF_CUDA_ERROR(cudaHostGetDevicePointer(&on_device, host, 0), "the GPU's address of host memory", gpu);
    on_device_ = static_cast<T*>(on_device);
    return absl::OkStatus();
  }
  T* host() const { return host_; }
  T* on_device() const { return on_device_; }

 private:
  T* host_ = nullptr;
  T* on_device_ = nullptr;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_DEVICE_RESOURCES_H_
