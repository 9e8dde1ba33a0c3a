#ifndef TACC_WORKER_RANK_STEP_TIMER_H_
#define TACC_WORKER_RANK_STEP_TIMER_H_

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/collectives.h"
#include "worker/rank/device.h"
#include "worker/rank/device_clock.h"
#include "worker/rank/marks.h"

namespace tacc::worker {

// When the instructions of a step ran, as SteadySeconds() counts.
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

  // For the executor: around what it queues. The first Begin since Take: nothing is in flight.
  absl::Status Begin(int call, int node, StepTimes::Role role);
  absl::Status End();

  // Of all since the last call; nothing has been timed: at once. Waits for the device; what was started must have been
  // waited for.
  absl::StatusOr<StepTimes> Take();

 private:
  absl::Status Note();

  Device& device_;
  CollectiveQueue* const collectives_;
  std::vector<StepTimes::Instruction> instructions_;
  // Begins and ends, in turn: of an asynchronous device places in its queue, of a CPU the times themselves.
  Marks marks_;
  std::vector<double> times_;
  DeviceClock clock_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_STEP_TIMER_H_
