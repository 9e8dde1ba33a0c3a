#ifndef TACC_WORKER_RANK_STEP_REPORTS_H_
#define TACC_WORKER_RANK_STEP_REPORTS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "worker/rank/rank_parts.h"

namespace tacc::worker {

// A step that was launched: what its event says of it.
struct LaunchedStep {
  double begin = 0;  // Of reading its batch, as SteadySeconds() counts.
  double data_wait_seconds = 0;
  uint64_t batch_hash = 0;
};

// What finished steps say: their events, the warning of an update that was skipped because the gradient norm was not
// finite, and the end of the run when that goes on.
class StepReports {
 public:
  // Updates skipped in a row before the run gives up.
  static constexpr int kMaxSkippedInARow = 10;

  // `parts` must outlive the object.
  explicit StepReports(RankParts* parts) : parts_(*parts) {}

  // No step is in flight: what ranks have waited for each other until now is of no step's communication.
  void StartCounting() { communication_seconds_ = parts_.collectives.stats().wait_seconds; }

  // After each step that the executor has finished, on all ranks; `step` counts updates from 1. An error with code
  // `nonfinite` when too many in a row were skipped: names the rank whose numbers were not finite first.
  absl::Status Finished(int64_t step, const LaunchedStep& launched);

 private:
  absl::Status WriteEvent(int64_t step, const LaunchedStep& launched);
  absl::Status CountSkipped(int64_t step, uint64_t batch_hash);
  absl::Status NonfiniteError(int64_t step, uint64_t batch_hash);

  RankParts& parts_;
  double last_finish_seconds_ = 0;    // When a step ended last.
  double communication_seconds_ = 0;  // In which the steps until then have waited for others.
  int skipped_in_a_row_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_STEP_REPORTS_H_
