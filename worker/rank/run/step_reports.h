// The events of steps, written when their numbers have come from the device.
#ifndef TACC_WORKER_RANK_RUN_STEP_REPORTS_H_
#define TACC_WORKER_RANK_RUN_STEP_REPORTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "machine/clock.h"
#include "worker/rank/run/load_states.h"
#include "worker/rank/run/loss_watch.h"
#include "worker/rank/run/rank_parts.h"
#include "worker/rank/run/stuck_watch.h"

namespace tacc::worker {

// A step that was launched: what its event says of it.
struct LaunchedStep {
  double begin = 0;  // Of reading its batch, as SteadySeconds() counts.
  double data_wait_seconds = 0;
  uint64_t batch_hash = 0;
  std::vector<int64_t> lengths;  // See StepSource::Lengths.
};

// What finished steps say: their events, the warning of an update that was skipped because the gradient norm was not
// finite, those of a training that learns nothing, and the end of the run when either goes on.
class StepReports {
 public:
  // Updates skipped in a row before the run gives up.
  static constexpr int kMaxSkippedInARow = 10;
  // At the end of the training, where no step follows that could show better: one batch may be to blame, two are not.
  static constexpr int kMaxSkippedAtTheEnd = 1;
  // Steps without a gradient after which a warning says so.
  static constexpr int64_t kStepsBeforeWarning = 5;

  // Both must outlive the object.
  StepReports(RankParts* parts, const StartPoint* begin)
      : parts_(*parts), begin_(*begin), stuck_(parts->start.stop_if_stuck_steps), loss_([this] { return Entropy(); }) {}

  // No step is in flight: what ranks have waited for each other until now is of no step's communication.
  void StartCounting() { communication_seconds_ = parts_.collectives.stats().wait_seconds; }

  // No step is in flight: the time since the last one's end is none of the next one's.
  void LeaveOut() { last_finish_seconds_ = SteadySeconds(); }

  // After each step that the executor has finished, on all ranks; `step` counts updates from 1. An error with code
  // `nonfinite` when too many in a row were skipped, or the last ones of a training that has made updates: names the
  // rank whose numbers were not finite first; with code `stuck` after train.stop_if_stuck_steps without a gradient, or
  // without a loss scale. Judges the checkpoint that is held: an update by a gradient of its weights, or of the same
  // ones later, shows that they are good.
  absl::Status Finished(int64_t step, const LaunchedStep& launched);

  // Whether the last steps may be those of a run that is stuck: what is saved now could take the place of a good
  // checkpoint. The same on all ranks.
  bool is_in_doubt() const { return stuck_.is_in_doubt(); }

 private:
  // Of the targets, by a sample of them: what the loss is held against. An error: the loss is not to be.
  absl::StatusOr<double> Entropy() const;
  // Of a step whose micro-batches have these lengths; none: that of the job.
  struct Size {
    int64_t tokens = 0;
    double flops = 0;  // 0: not known, or those of the plan
  };
  Size SizeOf(const std::vector<int64_t>& lengths) const;
  absl::Status WriteEvent(int64_t step, const LaunchedStep& launched);
  absl::Status Watch();
  // A skipped step is nothing to speak of while it can be the loss scale's fault.
  bool HalvesScale() const;
  absl::Status CountSkipped(int64_t step, uint64_t batch_hash);
  absl::Status CheckStuck(int64_t step);
  // Drops the checkpoint that is held, and says what to do, in sentences: from which step on the weights are broken,
  // and what to go on from.
  absl::StatusOr<std::string> WhereToGoOn(int64_t step);
  // Why no update was made, as part of a sentence.
  std::string WhyAllSkipped() const;
  absl::Status NonfiniteError(int64_t step, int num_skipped, uint64_t batch_hash);

  RankParts& parts_;
  const StartPoint& begin_;
  StuckWatch stuck_;
  LossWatch loss_;
  double last_finish_seconds_ = 0;    // When a step ended last.
  double communication_seconds_ = 0;  // In which the steps until then have waited for others.
  int skipped_in_a_row_ = 0;
  int broken_in_a_row_ = 0;  // Of these, those with a target.
  bool has_warned_of_no_gradient_ = false;
  bool has_updated_ = false;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_STEP_REPORTS_H_
