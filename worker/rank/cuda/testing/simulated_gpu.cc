#include "worker/rank/cuda/testing/simulated_gpu.h"

#include <atomic>
#include <utility>

#include "graph/ir/status_macros.h"

namespace tacc::worker {

class SimulatedGpu::Work : public Recording {
 public:
  Work(SimulatedGpu* device, std::function<void()> queue) : device_(*device), queue_(std::move(queue)) {}
  absl::Status Replay() override {
    ++device_.num_replays_;
    queue_();
    return absl::OkStatus();
  }

 private:
  SimulatedGpu& device_;
  const std::function<void()> queue_;
};

SimulatedGpu::SimulatedGpu(const KernelTable* kernels, SimulatedCommunication* communication)
    : queue_(*communication),
      kernels_(kernels, [communication](Kernel kernel) { communication->Compute(std::move(kernel)); }) {}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedGpu::CreateArena(int64_t arena_bytes, int64_t workspace_bytes) {
  return Arena::Create(arena_bytes, workspace_bytes);
}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedGpu::AllocateDevice(int64_t num_bytes) {
  return Arena::Create(num_bytes, 0);
}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedGpu::AllocateHost(int64_t num_bytes) {
  return Arena::Create(num_bytes, 0);
}

void SimulatedGpu::Copy(const Region& from, const Region& to) {
  queue_.Compute([from, to] { CopyRegion(from, to); });
}

void SimulatedGpu::Clear(const Region& region) {
  queue_.Compute([region] { ClearRegion(region); });
}

void SimulatedGpu::Upload(const void* host, const Region& to) {
  queue_.Compute([host, to] { UnpackRegion(static_cast<const char*>(host), 0, to.bytes(), to); });
}

void SimulatedGpu::UploadAhead(const void* host, const Region& to) {
  queue_.CopyAhead([host, to] { UnpackRegion(static_cast<const char*>(host), 0, to.bytes(), to); });
}

void SimulatedGpu::Download(const Region& from, void* host) {
  queue_.Compute([from, host] { PackRegion(from, 0, from.bytes(), static_cast<char*>(host)); });
}

void SimulatedGpu::Publish(uint32_t value, uint32_t* word) {
  queue_.Compute([value, word] { std::atomic_ref<uint32_t>(*word).store(value); });
}

// The device goes on whatever becomes of messages.
absl::Status SimulatedGpu::Synchronize() {
  (void)queue_.Synchronize();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device::Recording>> SimulatedGpu::Record(const std::function<absl::Status()>& queue) {
  TACC_ASSIGN_OR_RETURN(std::function<void()> work, queue_.Record(queue));
  return std::make_unique<Work>(this, std::move(work));
}

}  // namespace tacc::worker
