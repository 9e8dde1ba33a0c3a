#include "worker/rank/device/host_device.h"

#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

class NoMark : public Device::Mark {
 public:
  absl::Status Set() override { return absl::OkStatus(); }
  absl::Status Wait() override { return absl::OkStatus(); }
  absl::StatusOr<double> SecondsSince(const Mark&) const override {
    return absl::UnimplementedError("a CPU keeps no time of its work");
  }
};

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> HostDevice::CreateArena(int64_t arena_bytes, int64_t workspace_bytes) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Arena::Create(arena_bytes, workspace_bytes));
  if (use_workspace_ && workspace_bytes > 0) use_workspace_(arena->workspace());
  return arena;
}

absl::StatusOr<std::unique_ptr<Arena>> HostDevice::AllocateDevice(int64_t num_bytes) {
  return Arena::Create(num_bytes, 0);
}

absl::StatusOr<std::unique_ptr<Arena>> HostDevice::AllocateHost(int64_t num_bytes) {
  return Arena::Create(num_bytes, 0);
}

void HostDevice::Upload(const void* host, const Region& to) {
  UnpackRegion(static_cast<const char*>(host), 0, to.bytes(), to);
}

void HostDevice::Download(const Region& from, void* host) {
  PackRegion(from, 0, from.bytes(), static_cast<char*>(host));
}

absl::StatusOr<std::unique_ptr<Device::Mark>> HostDevice::CreateMark() { return std::make_unique<NoMark>(); }

absl::StatusOr<std::unique_ptr<Device::Recording>> HostDevice::Record(const std::function<absl::Status()>&) {
  return absl::UnimplementedError("a CPU records no work");
}

}  // namespace tacc::worker
