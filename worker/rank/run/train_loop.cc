#include "worker/rank/run/train_loop.h"

#include <map>
#include <string>

#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "machine/machine.h"
#include "worker/rank/run/evaluate.h"

namespace tacc::worker {
namespace {

// The host's threads have time to wait where a device is behind them.
CpuWatch WatchCpus(const Device& device) {
  if (device.is_asynchronous()) return CpuWatch([] { return std::map<int, double>(); });
  return CpuWatch([] { return ThreadWaitSeconds("/"); });
}

}  // namespace

TrainLoop::TrainLoop(RankParts* parts, const StartPoint* begin)
    : parts_(*parts),
      boundary_(&parts->collectives, &parts->commands, parts->checkpointer.get()),
      reports_(parts, begin),
      cpus_(WatchCpus(*parts->device)),
      first_step_(begin->step),
      step_(begin->step),
      num_launched_(begin->step) {}

absl::Status TrainLoop::Run() {
  parts_.ShowStep(step_);
  TACC_RETURN_IF_ERROR(parts_.measurement->Start(step_, parts_.start.max_steps));
  double begin = SteadySeconds(), data_wait = 0;  // Of the step that comes next.
  while (true) {
    const bool may_wait = launched_.empty();
    const double asked = SteadySeconds();
    const absl::StatusOr<Work> work = parts_.source->Next(num_launched_, may_wait);
    data_wait += SteadySeconds() - asked;
    TACC_ASSIGN_OR_RETURN(const BoundaryDecision decision, Agree(work));
    const bool gives_up = decision.work == Work::Kind::kGiveUp;
    was_stopped_ = decision.stops || gives_up;
    if (gives_up) stop_reason_ = parts_.source->GiveUpReason();
    const bool waits = decision.work == Work::Kind::kNothing && !was_stopped_ && !decision.saves;
    if (may_wait) parts_.Show(waits ? Activity::kWaitingForClient : Activity::kBetweenSteps);
    if (was_stopped_ || decision.work == Work::Kind::kEnd) {
      TACC_RETURN_IF_ERROR(FinishSteps(0));
      parts_.source->End();
      return absl::OkStatus();
    }
    if (decision.saves || decision.work != Work::Kind::kStep) TACC_RETURN_IF_ERROR(FinishSteps(0));
    if (decision.saves) TACC_RETURN_IF_ERROR(SaveCheckpoint());
    if (decision.work == Work::Kind::kNothing) {
      parts_.Beat();
      continue;  // What this step waits for its data has begun.
    }
    if (decision.work == Work::Kind::kRequest) {
      TACC_RETURN_IF_ERROR(parts_.source->Serve(step_, [this] { return SaveCheckpoint(); }));
      if (parts_.source->HasBegunStep()) continue;  // It was a part of the step, which takes as long as all of them.
    } else {
      TACC_RETURN_IF_ERROR(Launch({begin, data_wait, decision.batch_hash, {}}));
    }
    begin = SteadySeconds();
    data_wait = 0;
  }
}

absl::StatusOr<BoundaryDecision> TrainLoop::Agree(const absl::StatusOr<Work>& work) {
  const bool is_saving = parts_.checkpointer->progress() == Checkpointer::Progress::kBusy;
  TACC_ASSIGN_OR_RETURN(const BoundaryDecision decision, boundary_.Agree(work, cpus_.Take(SteadySeconds(), is_saving)));
  const std::string words = CpuWatch::Warning(decision.waiting_rank, decision.cpu_wait_share);
  if (parts_.start.rank == 0 && !words.empty()) parts_.events.WarningOnce("busy_cpu", words);
  return decision;
}

bool TrainLoop::TracesGaps() const {
  const int64_t step = num_launched_ + 1;
  const StepMeasurement& measurement = *parts_.measurement;
  return parts_.gaps != nullptr && parts_.gaps->is_due(step - first_step_) && !measurement.traces(step) &&
         !measurement.times_all_steps();
}

absl::Status TrainLoop::Launch(const LaunchedStep& step) {
  const StartFile& start = parts_.start;
  StepMeasurement& measurement = *parts_.measurement;
  if (launched_.empty()) reports_.StartCounting();
  const bool traces = measurement.traces(num_launched_ + 1);
  if (traces) {
    TACC_RETURN_IF_ERROR(FinishSteps(0));
    measurement.BeginTrace();
  }
  const bool traces_gaps = TracesGaps();
  if (traces_gaps) {
    TACC_RETURN_IF_ERROR(FinishSteps(0));
    parts_.gaps->Begin();
    reports_.LeaveOut();
  }
  if (parts_.watch != nullptr) parts_.watch->EnterStep(num_launched_ + 1);
  TACC_RETURN_IF_ERROR(parts_.source->Launch());
  launched_.push_back(step);
  launched_.back().lengths = parts_.source->Lengths();
  ++num_launched_;
  const bool is_last = parts_.source->IsLast(num_launched_);
  const bool evaluates = is_last || (start.eval_steps > 0 && num_launched_ % start.eval_steps == 0);
  const bool saves = start.save_steps > 0 && num_launched_ % start.save_steps == 0 && !is_last;
  // A device that is behind the host always has its next step waiting.
  const bool goes_on = parts_.device->is_asynchronous() && !evaluates && !saves && !traces && !traces_gaps &&
                       !measurement.times_all_steps();
  TACC_RETURN_IF_ERROR(FinishSteps(goes_on ? Executor::kMaxInFlight - 1 : 0));
  if (traces) TACC_RETURN_IF_ERROR(measurement.EndTrace());
  if (traces_gaps) parts_.gaps->End(*parts_.executor);
  if (evaluates) TACC_RETURN_IF_ERROR(Evaluate(parts_, step_));
  // Not over a good one; the next is saved if the run recovers.
  if (!saves || reports_.is_in_doubt()) return absl::OkStatus();
  TACC_RETURN_IF_ERROR(SaveCheckpoint());
  // What its weights are worth is seen in the steps after it.
  parts_.checkpointer->Hold();
  return absl::OkStatus();
}

absl::Status TrainLoop::SaveCheckpoint() {
  if (!parts_.saves_checkpoints()) return absl::OkStatus();
  if (parts_.record != nullptr) parts_.record->Sync();
  cpus_.BeginAnew();
  return parts_.checkpointer->Start(step_);
}

absl::Status TrainLoop::FinishSteps(int64_t num_in_flight) {
  while (parts_.executor->num_in_flight() > num_in_flight) TACC_RETURN_IF_ERROR(FinishStep());
  return absl::OkStatus();
}

absl::Status TrainLoop::FinishStep() {
  TACC_RETURN_IF_ERROR(parts_.executor->Finish());
  TACC_RETURN_IF_ERROR(parts_.measurement->Take());
  const LaunchedStep launched = launched_.front();
  launched_.pop_front();
  parts_.ShowStep(++step_);
  TACC_RETURN_IF_ERROR(reports_.Finished(step_, launched));
  parts_.source->Finished(step_);
  return absl::OkStatus();
}

}  // namespace tacc::worker
