// What the end of an attempt means for its job: it is over, starts again, or waits for what is not there.
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/rank_event.h"
#include "machine/exit_code.h"

namespace tacc::coordinator {
namespace {

// Up to here the rank's own fault.
constexpr int kOwnFault = 1;

// How much a rank's end says about the cause: the lower, the more. Ranks that wait for one that died fail in a
// collective.
int Order(const v1::RankEnded& ended) {
  switch (ended.end()) {
    case v1::RANK_END_FAILED:
      if (ended.has_exit_code() && (ended.exit_code() == kExitBadInput || ended.exit_code() == kExitNonfinite ||
                                    ended.exit_code() == kExitStuck || ended.exit_code() == kExitExport))
        return 0;
      return ended.code() == "collective" ? 3 : kOwnFault;
    case v1::RANK_END_LOST:
      return 2;
    case v1::RANK_END_KILLED:
      return 4;
    default:
      return 5;
  }
}

std::string Describe(const v1::RankEnded& ended, const std::string& worker) {
  std::string text = absl::StrCat("rank ", ended.rank(), " on ", worker, ": ");
  if (ended.end() == v1::RANK_END_LOST) return absl::StrCat(text, "lost, ", ended.message());
  if (ended.end() == v1::RANK_END_KILLED) return absl::StrCat(text, "killed by its daemon");
  if (ended.signal() != 0) {
    absl::StrAppend(&text, "killed by signal ", ended.signal());
    if (const char* name = sigabbrev_np(ended.signal())) absl::StrAppend(&text, " (SIG", name, ")");
  } else if (ended.has_exit_code()) {
    absl::StrAppend(&text, "exit ", ended.exit_code());
  } else {
    absl::StrAppend(&text, ended.code() == kStartCode ? "did not start" : "failed");
  }
  if (!ended.message().empty()) absl::StrAppend(&text, ": ", ended.message());
  return text;
}

// How the ranks of an attempt ended.
struct Outcome {
  v1::RankEnded end;  // Of the rank whose end says most about the cause.
  std::string cause;  // For people; empty when all finished.
  bool all_finished = true;
  bool any_stopped = false;
  std::string stop_reason;  // Of a rank that stopped by itself; empty: none did.

  bool failed() const { return end.end() == v1::RANK_END_FAILED; }
  bool lost() const { return end.end() == v1::RANK_END_LOST; }
};

Outcome OutcomeOf(const AttemptState& attempt) {
  Outcome outcome;
  const RankState* culprit = &attempt.ranks[0];
  for (const RankState& rank : attempt.ranks) {
    const auto key = [](const RankState& r) { return std::make_pair(Order(*r.ended), r.end_order); };
    if (key(rank) < key(*culprit)) culprit = &rank;
    outcome.all_finished = outcome.all_finished && rank.ended->end() == v1::RANK_END_FINISHED;
    outcome.any_stopped = outcome.any_stopped || rank.ended->end() == v1::RANK_END_STOPPED;
    if (rank.ended->end() == v1::RANK_END_STOPPED && outcome.stop_reason.empty())
      outcome.stop_reason = rank.ended->message();
  }
  outcome.end = *culprit->ended;
  // What a rank says of itself says more than that all stood still.
  if (!attempt.condemned.empty() && !(outcome.failed() && Order(outcome.end) <= kOwnFault)) {
    outcome.cause = attempt.condemned;
  } else if (!outcome.all_finished) {
    outcome.cause = Order(outcome.end) < 5 ? Describe(outcome.end, culprit->worker)
                                           : absl::StrCat("stopped at step ", attempt.step);
  }
  return outcome;
}

}  // namespace

void Core::EndAttempt(JobState* job) {
  const AttemptState& attempt = *job->attempt;
  const Outcome outcome = OutcomeOf(attempt);
  const v1::RankEnded& end = outcome.end;
  const std::vector<std::string> log_lines(end.last_log_lines().begin(), end.last_log_lines().end());
  const bool failed = outcome.failed(), lost = outcome.lost();
  const std::string& cause = outcome.cause;

  // What ranks of a job that has trained refuse before they train is no longer what it was: a folder that is half
  // there. A job that has only taken a run over, and has trained nothing, asks for what does not go.
  const bool has_changed = end.has_exit_code() && end.exit_code() == kExitBadInput &&
                           job->best_step > job->step_before && !attempt.AllReady() && !attempt.resume_damaged;
  const bool unavailable = !job->cancel.has_value() && failed && attempt.condemned.empty() &&
                           (end.code() == kUnavailableCode || has_changed);

  // What was trained before and is trained again must not go on without end, as with no room for the last checkpoint.
  const bool in_vain = !attempt.recent.empty() && attempt.step <= attempt.best_step_before;

  v1::Fact fact;
  v1::AttemptEnded* ended = fact.mutable_attempt_ended();
  ended->set_attempt(attempt.number);
  ended->set_unavailable(unavailable);
  if (!job->cancel.has_value()) ended->set_cause(cause);
  ended->set_step(attempt.step);
  // A lost worker counts as well: it may be the job that brings its machine down. One that was shut down does not.
  ended->set_counted(!job->cancel.has_value() && (failed || lost || !attempt.condemned.empty()) &&
                     !attempt.resume_damaged && (!unavailable || in_vain));
  const bool counted = ended->counted();
  Log(job, std::move(fact));
  Release(job->id);

  if (outcome.all_finished) {
    return EndJob(job, v1::PHASE_FINISHED, absl::StrCat("trained to step ", attempt.step), v1::FAILURE_CODE_UNSPECIFIED,
                  {});
  }
  if (job->cancel.has_value() && failed && end.code() == kCheckpointCode) {
    const std::string saved =
        job->checkpoints.empty()
            ? "none was saved before"
            : absl::StrCat("the last one saved is step ", job->checkpoints.back().step(), " (",
                           job->checkpoints.back().name(), "), from which it goes on when it is ", "submitted again");
    return EndJob(job, v1::PHASE_CANCELLED, absl::StrCat(end.message(), "; ", saved), v1::FAILURE_CODE_CHECKPOINT,
                  log_lines);
  }
  if (job->cancel.has_value()) {
    return EndJob(
        job, v1::PHASE_CANCELLED,
        absl::StrCat(outcome.any_stopped ? "stopped" : "cancelled", " at step ", job->step, job->LastCheckpointText()),
        v1::FAILURE_CODE_UNSPECIFIED, {});
  }
  if (outcome.any_stopped && !outcome.stop_reason.empty() && !failed && !lost && attempt.condemned.empty()) {
    return EndJob(job, v1::PHASE_CANCELLED,
                  absl::StrCat("stopped at step ", job->step, job->LastCheckpointText(), ": ", outcome.stop_reason),
                  v1::FAILURE_CODE_UNSPECIFIED, {});
  }
  const bool is_over = counted && job->restarts_without_progress >= job->spec.max_restarts();
  const std::string restart =
      counted ? absl::StrCat("; restart ", job->restarts_without_progress + 1, " of ", job->spec.max_restarts()) : "";
  if (unavailable && !is_over) {
    WaitOut(job, absl::StrCat(cause, restart));
    job->outage->in_attempts = true;
    return;
  }
  const bool path_damaged = attempt.resume_damaged && job->spec.checkpoint().resume_from_checkpoint() == attempt.resume;
  if (failed && end.has_exit_code() && attempt.condemned.empty() && (!attempt.resume_damaged || path_damaged)) {
    if (end.exit_code() == kExitBadInput || path_damaged) {
      return EndJob(job, v1::PHASE_FAILED, cause, v1::FAILURE_CODE_BAD_INPUT, log_lines);
    }
    if (end.exit_code() == kExitExport) {
      return EndJob(job, v1::PHASE_FAILED,
                    absl::StrCat(end.message(), "; export it with: taccctl export ", job->id,
                                 " --out DIR, or submit the job again, which then trains nothing"),
                    v1::FAILURE_CODE_EXPORT, log_lines);
    }
    if (end.exit_code() == kExitNonfinite)
      return EndJob(job, v1::PHASE_FAILED, cause, v1::FAILURE_CODE_NONFINITE, log_lines);
    if (end.exit_code() == kExitStuck) return EndJob(job, v1::PHASE_FAILED, cause, v1::FAILURE_CODE_STUCK, log_lines);
  }
  if (is_over) {
    const int restarts = job->restarts_without_progress;
    return EndJob(
        job, v1::PHASE_FAILED,
        absl::StrCat(cause, " (after ", restarts, restarts == 1 ? " restart" : " restarts", " without a new step)"),
        v1::FAILURE_CODE_RESTARTS, log_lines);
  }
  // What it waited for was there.
  job->reason.clear();
  if (job->outage.has_value()) job->outage->reason.clear();
  std::string text = absl::StrCat(cause, counted ? restart : "; it starts again");
  if (!job->checkpoints.empty()) absl::StrAppend(&text, " from ", job->checkpoints.back().name());
  Tell(*job, "restarting", text);
}

}  // namespace tacc::coordinator
