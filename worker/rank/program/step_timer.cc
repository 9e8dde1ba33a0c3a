#include "worker/rank/program/step_timer.h"

#include <utility>

#include "graph/ir/status_macros.h"
#include "machine/clock.h"

namespace tacc::worker {

StepTimer::StepTimer(Device* device, CollectiveQueue* collectives)
    : device_(*device),
      collectives_(collectives),
      marks_([device] { return device->CreateMark(); }),
      marks_ahead_([device] { return device->CreateMarkAhead(); }) {}

absl::Status StepTimer::Start() {
  if (is_timing_) return absl::OkStatus();
  is_timing_ = true;
  if (device_.is_asynchronous()) TACC_RETURN_IF_ERROR(clock_.Align(device_));
  return collectives_ == nullptr ? absl::OkStatus() : collectives_->StartTiming();
}

absl::StatusOr<StepTimer::Moment> StepTimer::Now(Marks& marks) const {
  Moment moment;
  if (device_.is_asynchronous()) {
    TACC_ASSIGN_OR_RETURN(moment.place, marks.Set());
  } else {
    moment.seconds = SteadySeconds();
  }
  return moment;
}

absl::Status StepTimer::Begin(int call, int node, StepTimes::Role role) {
  TACC_RETURN_IF_ERROR(Start());
  times_.instructions.push_back({call, node, role});
  TACC_ASSIGN_OR_RETURN(instructions_.emplace_back().begin, Now(marks_));
  return absl::OkStatus();
}

absl::Status StepTimer::End() {
  TACC_ASSIGN_OR_RETURN(instructions_.back().end, Now(marks_));
  return absl::OkStatus();
}

Marks& StepTimer::MarksOf(StepTimes::Copy::Direction direction) {
  return direction == StepTimes::Copy::Direction::kToDevice ? marks_ahead_ : marks_;
}

absl::Status StepTimer::BeginCopy(StepTimes::Copy::Direction direction, std::string names, int64_t bytes) {
  TACC_RETURN_IF_ERROR(Start());
  times_.copies.push_back({direction, std::move(names), bytes});
  TACC_ASSIGN_OR_RETURN(copies_.emplace_back().begin, Now(MarksOf(direction)));
  return absl::OkStatus();
}

absl::Status StepTimer::EndCopy() {
  TACC_ASSIGN_OR_RETURN(copies_.back().end, Now(MarksOf(times_.copies.back().direction)));
  return absl::OkStatus();
}

absl::StatusOr<double> StepTimer::SecondsAt(const Moment& moment) const {
  if (moment.place == nullptr) return moment.seconds;
  return clock_.SecondsAt(*moment.place);
}

template <typename Timed>
absl::Status StepTimer::FillIn(const std::vector<Stretch>& stretches, std::vector<Timed>& timed) const {
  for (size_t i = 0; i < timed.size(); ++i) {
    TACC_ASSIGN_OR_RETURN(timed[i].begin, SecondsAt(stretches[i].begin));
    TACC_ASSIGN_OR_RETURN(timed[i].end, SecondsAt(stretches[i].end));
  }
  return absl::OkStatus();
}

absl::StatusOr<StepTimes> StepTimer::Take() {
  if (!std::exchange(is_timing_, false)) return StepTimes();
  // What compute waits for is a copy, not the mark behind it.
  for (Marks* marks : {&marks_, &marks_ahead_}) TACC_RETURN_IF_ERROR(marks->Wait());
  StepTimes times = std::exchange(times_, {});
  TACC_RETURN_IF_ERROR(FillIn(instructions_, times.instructions));
  TACC_RETURN_IF_ERROR(FillIn(copies_, times.copies));
  instructions_.clear();
  copies_.clear();
  marks_.Clear();
  marks_ahead_.Clear();
  if (collectives_ != nullptr) {
    times.collectives_on_device = collectives_->is_on_device();
    TACC_ASSIGN_OR_RETURN(times.collectives, collectives_->TakeTimes(clock_));
  }
  return times;
}

}  // namespace tacc::worker
