#ifndef TACC_WORKER_RANK_RUN_TRAIN_LOOP_H_
#define TACC_WORKER_RANK_RUN_TRAIN_LOOP_H_

#include <cstdint>
#include <deque>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/run/cpu_watch.h"
#include "worker/rank/run/load_states.h"
#include "worker/rank/run/rank_parts.h"
#include "worker/rank/run/step_boundary.h"
#include "worker/rank/run/step_reports.h"

namespace tacc::worker {

// The steps of one start, with what is due between them: agreement of the ranks, evaluation, checkpoints, a trace.
class TrainLoop {
 public:
  // `parts`, loaded, and `begin` must outlive the object.
  TrainLoop(RankParts* parts, const StartPoint* begin);

  // Returns when all steps are done, or the ranks were told to stop; nothing is in flight then. All ranks call it,
  // once. Errors: of reading data, of the executor, of StepReports; Unavailable when another rank does not answer.
  absl::Status Run();

  // Updates done.
  int64_t step() const { return step_; }
  // Whether it ended by the command `stop`, or because the ranks gave up.
  bool was_stopped() const { return was_stopped_; }
  // Why they did; empty: they did not.
  const std::string& stop_reason() const { return stop_reason_; }

 private:
  // Starts the next step, ends those that need not stay in flight, and does what is due after it.
  absl::Status Launch(const LaunchedStep& step);
  // The exchange between two steps, with what this rank has to do next.
  absl::StatusOr<BoundaryDecision> Agree(const absl::StatusOr<Work>& work);
  // Of the states as they are, written while training goes on.
  absl::Status SaveCheckpoint();
  // Ends the oldest steps until at most `num_in_flight` are left.
  absl::Status FinishSteps(int64_t num_in_flight);
  // Whether the gaps of the next step are traced: of one that runs as any other.
  bool TracesGaps() const;
  absl::Status FinishStep();

  RankParts& parts_;
  StepBoundary boundary_;
  StepReports reports_;
  CpuWatch cpus_;
  const int64_t first_step_;  // Of the start, less one.
  int64_t step_;
  int64_t num_launched_;               // Of all steps, with those that are done.
  std::deque<LaunchedStep> launched_;  // And not finished.
  bool was_stopped_ = false;
  std::string stop_reason_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_TRAIN_LOOP_H_
