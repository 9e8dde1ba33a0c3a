#include "worker/rank/timing/step_measurement.h"

#include <utility>
#include <vector>

#include "graph/ir/status_macros.h"

namespace tacc::worker {

StepMeasurement::StepMeasurement(std::string profile_path, const graph::Program* program, Executor* executor,
                                 Collectives* host, StepTimer timer, RankTrace trace)
    : profile_path_(std::move(profile_path)),
      program_(*program),
      executor_(*executor),
      host_(*host),
      timer_(std::move(timer)),
      trace_(std::move(trace)) {}

absl::Status StepMeasurement::Start(int64_t steps_done, int64_t max_steps) {
  TACC_ASSIGN_OR_RETURN(const auto asked, host_.GatherHost({profile_path_.empty() ? 0ull : 1ull}));
  for (const std::vector<uint64_t>& rank : asked) times_all_steps_ = times_all_steps_ || rank[0] != 0;
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
  if (!profile_path_.empty()) profile_.Add(program_, times_);
  return absl::OkStatus();
}

void StepMeasurement::WriteProfile(const CollectiveStats& collectives, const HostWorkspace* workspace) const {
  if (!profile_path_.empty()) profile_.Write(profile_path_, collectives, program_, workspace);
}

}  // namespace tacc::worker
