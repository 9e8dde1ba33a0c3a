#include "worker/rank/step_timer.h"

#include <limits>
#include <utility>

#include "graph/ir/status_macros.h"
#include "machine/clock.h"

namespace tacc::worker {

// Finds a moment as both clocks have it: a mark that is set and waited for lies between two readings of the host's; the
// closest pair counts.
absl::Status StepTimer::Align() {
  constexpr int kTries = 8;
  TACC_RETURN_IF_ERROR(device_.Synchronize());
  double closest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    TACC_ASSIGN_OR_RETURN(std::unique_ptr<Device::Mark> mark, device_.CreateMark());
    const double before = SteadySeconds();
    TACC_RETURN_IF_ERROR(mark->Set());
    TACC_RETURN_IF_ERROR(mark->Wait());
    const double after = SteadySeconds();
    if (after - before >= closest) continue;
    closest = after - before;
    origin_seconds_ = (before + after) / 2;
    origin_ = std::move(mark);
  }
  return absl::OkStatus();
}

absl::Status StepTimer::Note() {
  if (!device_.is_asynchronous()) {
    times_.push_back(SteadySeconds());
    return absl::OkStatus();
  }
  if (num_marks_ == marks_.size()) {
    TACC_ASSIGN_OR_RETURN(std::unique_ptr<Device::Mark> mark, device_.CreateMark());
    marks_.push_back(std::move(mark));
  }
  return marks_[num_marks_++]->Set();
}

absl::Status StepTimer::Begin(int call, int node, StepTimes::Role role) {
  if (instructions_.empty()) {
    if (collectives_ != nullptr) TACC_RETURN_IF_ERROR(collectives_->StartTiming());
    if (device_.is_asynchronous()) TACC_RETURN_IF_ERROR(Align());
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
    for (size_t i = 0; i < num_marks_; ++i) {
      TACC_ASSIGN_OR_RETURN(const double seconds, marks_[i]->SecondsSince(*origin_));
      times_.push_back(origin_seconds_ + seconds);
    }
    num_marks_ = 0;
  }
  times.instructions = std::exchange(instructions_, {});
  for (size_t i = 0; i < times.instructions.size(); ++i) {
    times.instructions[i].begin = times_[2 * i];
    times.instructions[i].end = times_[2 * i + 1];
  }
  times_.clear();
  if (collectives_ != nullptr) {
    times.collectives_on_device = collectives_->is_on_device();
    TACC_ASSIGN_OR_RETURN(times.collectives, collectives_->TakeTimes());
  }
  return times;
}

}  // namespace tacc::worker
