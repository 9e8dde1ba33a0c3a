#ifndef TACC_WORKER_RANK_TESTING_SIMULATED_DEVICE_H_
#define TACC_WORKER_RANK_TESTING_SIMULATED_DEVICE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "worker/rank/device/device.h"
#include "worker/rank/device/queued_kernels.h"

namespace tacc::worker {

// For tests: an asynchronous device on host memory, as hostile as a real one may be. Nothing queued is done before the
// host waits for it, and the memory of the device cannot be touched but by what is queued: the host that does ends with
// SIGSEGV. UploadAhead is done at once, before all that is queued. Copies to host memory are late: until the wait it
// holds a pattern. Each piece of work takes kPieceSeconds of its time, but UploadAhead none; a gap may end it.
class SimulatedDevice : public Device {
 public:
  static constexpr double kPieceSeconds = 1e-3;

  // `kernels`: of a CPU; must outlive the object.
  explicit SimulatedDevice(const KernelTable* kernels);

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
  std::optional<int64_t> MemoryUsedBytes() override;
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override;
  absl::StatusOr<std::unique_ptr<Mark>> CreateMarkAhead() override;
  absl::Status StartActivity(Mark& origin) override;
  absl::StatusOr<std::vector<TimeSpan>> StopActivity() override;
  absl::StatusOr<std::unique_ptr<Recording>> Record(const std::function<absl::Status()>& queue) override;

  // From now on the device works in this share of each piece's time, at its beginning; 1 before.
  void SetActiveShare(double share) { active_share_ = share; }
  // From now on it cannot say when it works.
  void FailActivity(absl::Status status) { activity_status_ = std::move(status); }
  // How often it was asked when it works.
  int64_t num_activities() const { return num_activities_; }

  // Recordings queued, each time counted.
  int64_t num_replays() const { return num_replays_; }

 private:
  class QueueMark;
  class Work;
  struct Memory {
    char* data;
    int64_t bytes;
  };

  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t arena_bytes, int64_t workspace_bytes);
  void Queue(std::function<void()> work);
  // Does what was queued first, up to `count` pieces in all since the beginning.
  void DoUpTo(int64_t count);
  void Protect(int protection);

  const QueuedKernels kernels_;
  std::vector<Memory> memories_;
  std::deque<std::function<void()>> queue_;
  int64_t num_queued_ = 0, num_done_ = 0;
  std::vector<std::function<void()>>* recording_ = nullptr;  // while recording
  int64_t num_replays_ = 0;
  double active_share_ = 1;
  absl::Status activity_status_;
  int64_t num_activities_ = 0;
  std::optional<int64_t> activity_begin_;  // What had been done when it began.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TESTING_SIMULATED_DEVICE_H_
