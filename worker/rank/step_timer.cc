#include "worker/rank/step_timer.h"

#include <utility>

#include "graph/ir/status_macros.h"
#include "machine/clock.h"

namespace tacc::worker {

StepTimer::StepTimer(Device* device, CollectiveQueue* collectives)
    : device_(*device), collectives_(collectives), marks_([device] { return device->CreateMark(); }) {}

absl::Status StepTimer::Note() {
  if (device_.is_asynchronous()) return marks_.Set().status();
  times_.push_back(SteadySeconds());
  return absl::OkStatus();
}

absl::Status StepTimer::Begin(int call, int node, StepTimes::Role role) {
  if (instructions_.empty()) {
    if (device_.is_asynchronous()) TACC_RETURN_IF_ERROR(clock_.Align(device_));
    if (collectives_ != nullptr) TACC_RETURN_IF_ERROR(collectives_->StartTiming());
  }
  instructions_.push_back({call, node, role});
  return Note();
}

absl::Status StepTimer::End() { return Note(); }

absl::StatusOr<StepTimes> StepTimer::Take() {
  StepTimes times;
  if (instructions_.empty()) return times;
  if (device_.is_asynchronous()) {
    TACC_RETURN_IF_ERROR(device_.Synchronize());
    for (size_t i = 0; i < marks_.size(); ++i) {
      TACC_ASSIGN_OR_RETURN(const double seconds, clock_.SecondsAt(marks_[i]));
      times_.push_back(seconds);
    }
    marks_.Clear();
  }
  times.instructions = std::exchange(instructions_, {});
  for (size_t i = 0; i < times.instructions.size(); ++i) {
    times.instructions[i].begin = times_[2 * i];
    times.instructions[i].end = times_[2 * i + 1];
  }
  times_.clear();
  if (collectives_ != nullptr) {
    times.collectives_on_device = collectives_->is_on_device();
    TACC_ASSIGN_OR_RETURN(times.collectives, collectives_->TakeTimes(clock_));
  }
  return times;
}

}  // namespace tacc::worker
