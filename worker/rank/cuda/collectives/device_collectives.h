#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_DEVICE_COLLECTIVES_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_DEVICE_COLLECTIVES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/collectives/two_levels.h"
#include "worker/rank/cuda/collectives/communication.h"
#include "worker/rank/cuda/collectives/step_queue.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/marks.h"

namespace tacc::worker {

// Collectives that are queued on the device, and can be recorded, but for messages: those outlast the graph that posts
// them. All-gathers are the library's, straight from and to their memory where the parts lie in a row, equal and in the
// order of members; else by way of the staging. Sums are the library's too (Sums::kLibrary) where the result has the
// summands' type, or the bits that Collectives gives (kInOrder): in the order of ranks in f32, whatever time does, of
// several machines in its two levels. Exchanges are messages. All ranks start the same collectives in the same order.
// One thread uses the object.
//
// Messages are cut into chunks of which the staging holds three for each member of the group and two more, so that both
// sides cut alike however their regions lie.
class DeviceCollectives : public CollectiveQueue {
 public:
  // For strided regions and sums, of the device's memory: part of the reserve beside a plan.
  static constexpr int64_t kStagingBytes = 64 << 20;
  enum class Sums { kInOrder, kLibrary };

  // `staging_bytes` is the most that is taken; it and `sums` are the same on all ranks.
  DeviceCollectives(std::unique_ptr<Communication> communication, Sums sums, int64_t staging_bytes = kStagingBytes);

  absl::Status Prepare(const CollectiveCall* call) override;
  // Takes the staging, as much as the calls need, and connects the ranks.
  absl::Status Open() override;
  absl::Status EnterCall(uint32_t call) override { return communication_->EnterCall(call); }

  // None of these waits for the device.
  absl::StatusOr<Ticket> Start(const CollectiveCall* call) override;
  absl::Status Wait(Ticket ticket) override;
  absl::Status Finish(const CollectiveCall& call, Ticket ticket) override;
  absl::Status Run(const CollectiveCall& call) override;
  absl::Status Check() override { return communication_->Check(); }
  CollectiveProgress Progress() const override { return communication_->Progress(); }
  // By timed marks around each call in its queue, made when they are first needed.
  absl::Status StartTiming() override;
  absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock& clock) override;
  bool is_on_device() const override { return true; }

  // Taken by Open.
  int64_t staging_bytes() const { return staging_ == nullptr ? 0 : staging_->arena_bytes(); }

 private:
  struct Prepared {
    const CollectiveCall* call = nullptr;
    CommunicationStream* stream = nullptr;
    std::unique_ptr<CommunicationStream::Mark> end;
    std::vector<CollectiveStep> steps;  // What it comes to.
    int64_t sent_bytes = 0;             // By this rank.
  };
  // A call that was queued while timing.
  struct Timed {
    const Device::Mark* begin = nullptr;
    const Device::Mark* end = nullptr;
    int64_t sent_bytes = 0;
  };

  absl::Status Queue(const Prepared& prepared);
  absl::Status QueueSteps(const Prepared& prepared);
  // Appends what the call comes to, which is no message.
  absl::Status AddSteps(const CollectiveCall& call, std::vector<CollectiveStep>& steps) const;
  std::optional<TwoLevels> LevelsOf(const CollectiveCall& call) const;

  const std::unique_ptr<Communication> communication_;  // Goes last, its streams with it.
  const Sums sums_;
  const StepQueue queue_;
  int64_t needed_bytes_ = 0;
  bool is_open_ = false;
  std::unique_ptr<Arena> staging_;
  std::vector<Prepared> prepared_;  // A call's ticket is its index.
  std::map<const CollectiveCall*, Ticket> tickets_;
  bool is_timing_ = false;
  std::vector<Timed> timed_;                     // In the order of Start.
  std::map<CommunicationStream*, Marks> times_;  // Of queues that have had calls to time: theirs, begins and ends.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_DEVICE_COLLECTIVES_H_
