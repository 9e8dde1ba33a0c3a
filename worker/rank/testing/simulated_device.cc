#include "worker/rank/testing/simulated_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "graph/ir/status_macros.h"
#include "kernels/check.h"

namespace tacc::worker {

class SimulatedDevice::QueueMark : public Mark {
 public:
  // `place`: where it is set.
  QueueMark(SimulatedDevice* device, const int64_t* place) : device_(*device), next_place_(*place) {}
  absl::Status Set() override {
    TACC_KERNEL_CHECK(device_.recording_ == nullptr);
    place_ = next_place_;
    return absl::OkStatus();
  }
  absl::Status Wait() override {
    device_.DoUpTo(place_);
    return absl::OkStatus();
  }
  absl::StatusOr<double> SecondsSince(const Mark& earlier) const override {
    TACC_KERNEL_CHECK(place_ <= device_.num_done_);
    return static_cast<double>(place_ - static_cast<const QueueMark&>(earlier).place_) * kPieceSeconds;
  }

 private:
  SimulatedDevice& device_;
  const int64_t& next_place_;
  int64_t place_ = 0;
};

class SimulatedDevice::Work : public Recording {
 public:
  Work(SimulatedDevice* device, std::vector<std::function<void()>> work) : device_(*device), work_(std::move(work)) {}
  absl::Status Replay() override {
    TACC_KERNEL_CHECK(device_.recording_ == nullptr);
    ++device_.num_replays_;
    for (const std::function<void()>& piece : work_) device_.Queue(piece);
    return absl::OkStatus();
  }

 private:
  SimulatedDevice& device_;
  const std::vector<std::function<void()>> work_;
};

SimulatedDevice::SimulatedDevice(const KernelTable* kernels)
    : kernels_(kernels, [this](Kernel kernel) { Queue(std::move(kernel)); }) {}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedDevice::Allocate(int64_t arena_bytes, int64_t workspace_bytes) {
  const int64_t total = Arena::TotalBytes(arena_bytes, workspace_bytes);
  void* data = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) return absl::ResourceExhaustedError("no addresses");
  memories_.push_back({static_cast<char*>(data), total});
  return Arena::Adopt(static_cast<char*>(data), arena_bytes, workspace_bytes, [this, total](char* memory) {
    std::erase_if(memories_, [memory](const Memory& m) { return m.data == memory; });
    munmap(memory, total);
  });
}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedDevice::CreateArena(int64_t arena_bytes, int64_t workspace_bytes) {
  return Allocate(arena_bytes, workspace_bytes);
}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedDevice::AllocateDevice(int64_t num_bytes) {
  return Allocate(num_bytes, 0);
}

absl::StatusOr<std::unique_ptr<Arena>> SimulatedDevice::AllocateHost(int64_t num_bytes) {
  return Arena::Create(num_bytes, 0);
}

void SimulatedDevice::Queue(std::function<void()> work) {
  if (recording_ != nullptr) {
    recording_->push_back(std::move(work));
    return;
  }
  queue_.push_back(std::move(work));
  ++num_queued_;
}

void SimulatedDevice::Copy(const Region& from, const Region& to) {
  TACC_KERNEL_CHECK(from.bytes() == to.bytes());
  Queue([from, to] { CopyRegion(from, to); });
}

void SimulatedDevice::Clear(const Region& region) {
  Queue([region] { ClearRegion(region); });
}

void SimulatedDevice::Upload(const void* host, const Region& to) {
  Queue([host, to] { UnpackRegion(static_cast<const char*>(host), 0, to.bytes(), to); });
}

void SimulatedDevice::Download(const Region& from, void* host) {
  std::memset(host, 0xab, from.bytes());
  Queue([from, host] { PackRegion(from, 0, from.bytes(), static_cast<char*>(host)); });
}

void SimulatedDevice::Publish(uint32_t value, uint32_t* word) {
  Queue([value, word] { std::atomic_ref<uint32_t>(*word).store(value); });
}

void SimulatedDevice::UploadAhead(const void* host, const Region& to) {
  TACC_KERNEL_CHECK(recording_ == nullptr);
  Protect(PROT_READ | PROT_WRITE);
  UnpackRegion(static_cast<const char*>(host), 0, to.bytes(), to);
  Protect(PROT_NONE);
}

void SimulatedDevice::Protect(int protection) {
  for (const Memory& memory : memories_) TACC_KERNEL_CHECK(mprotect(memory.data, memory.bytes, protection) == 0);
}

void SimulatedDevice::DoUpTo(int64_t count) {
  TACC_KERNEL_CHECK(recording_ == nullptr);
  Protect(PROT_READ | PROT_WRITE);
  for (; num_done_ < count; ++num_done_) {
    queue_.front()();
    queue_.pop_front();
  }
  Protect(PROT_NONE);
}

absl::Status SimulatedDevice::Synchronize() {
  DoUpTo(num_queued_);
  return absl::OkStatus();
}

std::optional<int64_t> SimulatedDevice::MemoryUsedBytes() {
  int64_t bytes = 0;
  for (const Memory& memory : memories_) bytes += memory.bytes;
  return bytes;
}

absl::StatusOr<std::unique_ptr<Device::Mark>> SimulatedDevice::CreateMark() {
  return std::make_unique<QueueMark>(this, &num_queued_);
}

absl::StatusOr<std::unique_ptr<Device::Mark>> SimulatedDevice::CreateMarkAhead() {
  return std::make_unique<QueueMark>(this, &num_done_);
}

absl::Status SimulatedDevice::StartActivity(Mark& origin) {
  TACC_KERNEL_CHECK(num_done_ == num_queued_ && !activity_begin_.has_value());
  ++num_activities_;
  TACC_RETURN_IF_ERROR(activity_status_);
  activity_begin_ = num_done_;
  return origin.Set();
}

absl::StatusOr<std::vector<TimeSpan>> SimulatedDevice::StopActivity() {
  TACC_KERNEL_CHECK(num_done_ == num_queued_ && activity_begin_.has_value());
  std::vector<TimeSpan> pieces;
  for (int64_t i = 0; i < num_done_ - *activity_begin_; ++i) {
    const double begin = static_cast<double>(i) * kPieceSeconds;
    pieces.push_back({begin, begin + active_share_ * kPieceSeconds});
  }
  activity_begin_.reset();
  return pieces;
}

absl::StatusOr<std::unique_ptr<Device::Recording>> SimulatedDevice::Record(const std::function<absl::Status()>& queue) {
  TACC_KERNEL_CHECK(recording_ == nullptr);
  std::vector<std::function<void()>> work;
  recording_ = &work;
  const absl::Status status = queue();
  recording_ = nullptr;
  TACC_RETURN_IF_ERROR(status);
  return std::make_unique<Work>(this, std::move(work));
}

}  // namespace tacc::worker
