#ifndef TACC_WORKER_RANK_TIMING_STEP_MEASUREMENT_H_
#define TACC_WORKER_RANK_TIMING_STEP_MEASUREMENT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "graph/ir/program.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/program/step_timer.h"
#include "worker/rank/timing/profile.h"
#include "worker/rank/timing/rank_trace.h"

namespace tacc::worker {

// Which of a start's steps are timed, instruction by instruction: all of them, evaluations too, for a profile, and the
// one of which a rank was asked for a trace. All ranks time the same steps, whichever was asked: what is timed is not
// recorded, and what one rank records all must.
class StepMeasurement {
 public:
  // `profile_path`: empty: this rank writes no profile. The pointers must outlive the object; `timer` and `trace` are
  // of the same rank as `executor`.
  StepMeasurement(std::string profile_path, const graph::Program* program, Executor* executor, Collectives* host,
                  StepTimer timer, RankTrace trace);

  // All ranks call it before the first step of the start. Errors: of the talk between ranks.
  absl::Status Start(int64_t steps_done, int64_t max_steps);

  // After Start: a rank was asked for a profile.
  bool times_all_steps() const { return times_all_steps_; }
  // Whether step number `step` is to be put between BeginTrace and EndTrace.
  bool traces(int64_t step) const { return step == trace_.step(); }

  // Nothing is in flight. All ranks call them.
  void BeginTrace();
  // The step has been finished and taken. Errors: of the talk between ranks.
  absl::Status EndTrace();

  // After each step or evaluation that the executor has finished: the times that were taken of it, if any.
  absl::Status Take();

  // At the end; nothing without a path. As Profile::Write.
  void WriteProfile(const CollectiveStats& collectives, const HostWorkspace* workspace) const;

 private:
  const std::string profile_path_;
  const graph::Program& program_;
  Executor& executor_;
  Collectives& host_;
  bool times_all_steps_ = false;
  StepTimer timer_;
  RankTrace trace_;
  Profile profile_;
  StepTimes times_;  // Taken last.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TIMING_STEP_MEASUREMENT_H_
