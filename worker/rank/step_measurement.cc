#include "worker/rank/step_measurement.h"

#include <utility>

#include "graph/ir/status_macros.h"

namespace tacc::worker {

StepMeasurement::StepMeasurement(std::string profile_path, const graph::Program* program, Executor* executor,
                                 StepTimer timer, RankTrace trace)
    : profile_path_(std::move(profile_path)),
      program_(*program),
      executor_(*executor),
      timer_(std::move(timer)),
      trace_(std::move(trace)) {}

absl::Status StepMeasurement::Start(int64_t steps_done, int64_t max_steps) {
  if (times_all_steps()) executor_.SetTimer(&timer_);
  return trace_.Agree(steps_done, max_steps);
}

void StepMeasurement::BeginTrace() { executor_.SetTimer(&timer_); }

absl::Status StepMeasurement::EndTrace() {
  if (!times_all_steps()) executor_.SetTimer(nullptr);
  return trace_.Finish(times_);
}

absl::Status StepMeasurement::Take() {
  TACC_ASSIGN_OR_RETURN(times_, timer_.Take());
  if (times_all_steps()) profile_.Add(program_, times_);
  return absl::OkStatus();
}

void StepMeasurement::WriteProfile(const CollectiveStats& collectives, const WorkspaceAllocator* allocator) const {
  if (times_all_steps()) profile_.Write(profile_path_, collectives, program_, allocator);
}

}  // namespace tacc::worker
