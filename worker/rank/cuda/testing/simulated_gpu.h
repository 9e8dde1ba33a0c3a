#ifndef TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_GPU_H_
#define TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_GPU_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "worker/rank/cuda/testing/simulated_communication.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/queued_kernels.h"

namespace tacc::worker {

// For tests: a device whose queue is compute of a SimulatedCommunication, on host memory. So an executor's work and
// what ranks tell each other meet as on a GPU, in recordings too, and nothing is done before the host waits. Its clock
// is the host's.
class SimulatedGpu : public Device {
 public:
  // Both must outlive the object; `kernels` are a CPU's.
  SimulatedGpu(const KernelTable* kernels, SimulatedCommunication* communication);

  bool is_asynchronous() const override { return true; }
  const KernelTable& kernels() const override { return kernels_; }
  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t arena_bytes, int64_t workspace_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateDevice(int64_t num_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateHost(int64_t num_bytes) override;
  void Copy(const Region& from, const Region& to) override;
  void Clear(const Region& region) override;
  void Upload(const void* host, const Region& to) override;
  void Download(const Region& from, void* host) override;
  void Publish(uint32_t value, uint32_t* word) override;
  void UploadAhead(const void* host, const Region& to) override;
  absl::Status Synchronize() override;
  std::optional<int64_t> MemoryUsedBytes() override { return std::nullopt; }
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override { return queue_.CreateMark(); }
  absl::StatusOr<std::unique_ptr<Mark>> CreateMarkAhead() override { return queue_.CreateMarkAhead(); }
  absl::StatusOr<std::unique_ptr<Recording>> Record(const std::function<absl::Status()>& queue) override;

  // Recordings queued, each time counted.
  int64_t num_replays() const { return num_replays_; }

 private:
  class Work;

  SimulatedCommunication& queue_;
  const QueuedKernels kernels_;
  int64_t num_replays_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_GPU_H_
