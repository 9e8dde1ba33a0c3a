// When the parts of a step ran.
#ifndef TACC_WORKER_RANK_PROGRAM_STEP_TIMER_H_
#define TACC_WORKER_RANK_PROGRAM_STEP_TIMER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/device_clock.h"
#include "worker/rank/device/marks.h"

namespace tacc::worker {

// When the instructions of a step ran, and its copies, as SteadySeconds() counts.
struct StepTimes {
  enum class Role {
    kComputes,
    kCommunicates,  // starts a collective and waits for it
    kStarts,        // a collective or message
    kWaits,         // for what has been started
  };
  // From when all before it in the device's queue was done to when it was.
  struct Instruction {
    int call = 0;  // of the program's step, then of its eval
    int node = 0;  // of the call's graph: the first that it does
    Role role = Role::kComputes;
    double begin = 0;
    double end = 0;
  };
  std::vector<Instruction> instructions;  // as they were queued
  // Between the host and an asynchronous device, beside the instructions.
  struct Copy {
    enum class Direction { kToDevice, kToHost };
    Direction direction = Direction::kToDevice;
    std::string names;  // of the inputs or outputs that it moves
    int64_t bytes = 0;
    double begin = 0;
    double end = 0;
  };
  std::vector<Copy> copies;  // as they were queued
  // One for each instruction that communicates or starts, in their order.
  std::vector<CollectiveTime> collectives;
  bool collectives_on_device = false;
};

// Takes the times of what an executor runs while it has the timer (Executor::SetTimer): of an asynchronous device by
// marks in its queues, so the host waits for nothing meanwhile.
class StepTimer {
 public:
  // Both must outlive the object; `collectives` may be null.
  StepTimer(Device* device, CollectiveQueue* collectives);

  // For the executor: around what it queues, copies by UploadAhead and by Download. At the first one since Take nothing
  // is in flight.
  absl::Status Begin(int call, int node, StepTimes::Role role);
  absl::Status End();
  absl::Status BeginCopy(StepTimes::Copy::Direction direction, std::string names, int64_t bytes);
  absl::Status EndCopy();

  // Of all since the last call; nothing has been timed: at once. Waits for the device; what was started must have been
  // waited for.
  absl::StatusOr<StepTimes> Take();

 private:
  // A place in a queue of an asynchronous device; on a CPU the time itself.
  struct Moment {
    const Device::Mark* place = nullptr;
    double seconds = 0;
  };
  struct Stretch {
    Moment begin, end;
  };

  absl::Status Start();
  absl::StatusOr<Moment> Now(Marks& marks) const;
  // Which marks are of the queue that a copy is in.
  Marks& MarksOf(StepTimes::Copy::Direction direction);
  absl::StatusOr<double> SecondsAt(const Moment& moment) const;
  template <typename Timed>
  absl::Status FillIn(const std::vector<Stretch>& stretches, std::vector<Timed>& timed) const;

  Device& device_;
  CollectiveQueue* const collectives_;
  bool is_timing_ = false;
  StepTimes times_;                             // But for the times.
  std::vector<Stretch> instructions_, copies_;  // Of times_'s.
  Marks marks_, marks_ahead_;
  DeviceClock clock_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_STEP_TIMER_H_
