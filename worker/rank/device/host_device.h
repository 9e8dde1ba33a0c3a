#ifndef TACC_WORKER_RANK_DEVICE_HOST_DEVICE_H_
#define TACC_WORKER_RANK_DEVICE_HOST_DEVICE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/types/span.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// The CPU: what is queued is done at once, on the calling thread and those of the kernels.
class HostDevice : public Device {
 public:
  // `kernels` must outlive the object. `use_workspace` is told the workspace of the arena, for what kernels allocate.
  explicit HostDevice(const KernelTable* kernels, std::function<void(absl::Span<char>)> use_workspace = nullptr)
      : kernels_(*kernels), use_workspace_(std::move(use_workspace)) {}

  bool is_asynchronous() const override { return false; }
  const KernelTable& kernels() const override { return kernels_; }
  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t arena_bytes, int64_t workspace_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateDevice(int64_t num_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateHost(int64_t num_bytes) override;
  void Copy(const Region& from, const Region& to) override { CopyRegion(from, to); }
  void Clear(const Region& region) override { ClearRegion(region); }
  void Upload(const void* host, const Region& to) override;
  void Download(const Region& from, void* host) override;
  void Publish(uint32_t value, uint32_t* word) override { std::atomic_ref<uint32_t>(*word).store(value); }
  void UploadAhead(const void* host, const Region& to) override { Upload(host, to); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  std::optional<int64_t> MemoryUsedBytes() override { return std::nullopt; }
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override;
  absl::StatusOr<std::unique_ptr<Mark>> CreateMarkAhead() override { return CreateMark(); }
  absl::StatusOr<std::unique_ptr<Recording>> Record(const std::function<absl::Status()>& queue) override;

 private:
  const KernelTable& kernels_;
  const std::function<void(absl::Span<char>)> use_workspace_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_HOST_DEVICE_H_
