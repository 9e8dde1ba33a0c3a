#include "client/taccctl/follow.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "client/taccctl/session/exit_code.h"
#include "client/taccctl/show/message_json.h"
#include "client/taccctl/show/progress.h"
#include "client/taccctl/show/sample.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"

namespace tacc::client {
namespace {

// The job, which has ended, when the page about it is written too.
v1::Job AfterItsReport(const v1::Job& job, CoordinatorClient* client, Context* context) {
  constexpr double kLookSeconds = 0.05, kPatienceSeconds = 5;
  const int seen = context->interrupt.count();
  v1::Job ended = job;
  for (double waited = 0; ended.report_pending() && waited < kPatienceSeconds; waited += kLookSeconds) {
    if (context->interrupt.WaitFor(kLookSeconds, seen)) break;
    const absl::StatusOr<v1::Job> now = client->Get(job.id());
    if (!now.ok()) break;
    ended = *now;
  }
  return ended;
}

// Whether the file is there and no older than that (seconds since the epoch): an earlier run in the folder has left its
// own.
bool IsSince(const std::string& path, double time) {
  struct stat found;
  return stat(path.c_str(), &found) == 0 && static_cast<double>(found.st_mtime) >= std::floor(time);
}

}  // namespace

absl::StatusOr<v1::Job> FollowJob(const v1::Job& job, const FollowOptions& options, CoordinatorClient* client,
                                  Context* context) {
  constexpr double kAskAgainSeconds = 2;
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  double timeout_seconds = options.timeout_seconds;
  const auto left = [&] { return timeout_seconds - std::chrono::duration<double>(Clock::now() - start).count(); };
  const absl::Status timed_out = absl::DeadlineExceededError(
      absl::StrCat(job.id(), " has not ended after ", FormatNumber(options.timeout_seconds, 6), " s; it goes on"));
  Progress progress(context, options.form, job.max_steps());
  v1::WatchRequest request;
  request.set_job(job.id());
  request.set_cursor(options.cursor);
  Backoff backoff;
  bool away = false, has_trained = false, knows_max_steps = job.max_steps() > 0;
  int seen = client->interrupts_seen();
  using Answer = FollowOptions::Answer;
  std::function<Answer()> question;  // The last one, to ask again.
  const auto has_left = [&] {
    const Answer answer = question();
    if (answer != Answer::kAskAgain) question = nullptr;
    return answer == Answer::kLeave;
  };
  while (true) {
    if (question && context->interrupt.count() == seen && has_left()) return absl::CancelledError("interrupted");
    double limit = timeout_seconds > 0 ? std::max(left(), 0.001) : 0;
    if (question) limit = limit > 0 ? std::min(limit, kAskAgainSeconds) : kAskAgainSeconds;
    absl::Status status = client->Watch(request, limit, [&](const v1::WatchResponse& item) {
      if (away) progress.Note("the coordinator is back");
      away = false;
      backoff.Reset();
      request.set_cursor(item.cursor());
      has_trained = has_trained || item.has_step();
      if (item.has_step() && !knows_max_steps) {
        const absl::StatusOr<v1::Job> planned = client->Get(job.id());
        if (planned.ok()) progress.SetMaxSteps(planned->max_steps());
        knows_max_steps = planned.ok();
      }
      progress.Take(item);
    });
    if (status.ok()) {
      absl::StatusOr<v1::Job> ended = client->Get(job.id());
      if (ended.ok() && HasEnded(ended->phase())) {
        progress.Finish();
        return AfterItsReport(*ended, client, context);
      }
      status = ended.ok() ? absl::UnavailableError("the stream ended") : ended.status();
    }
    if (!context->interrupt.aborted().ok()) return context->interrupt.aborted();
    if (timeout_seconds > 0 && left() <= 0.01) {
      question = options.on_timeout;
      if (!question || has_left()) return timed_out;
      timeout_seconds = 0;
      continue;
    }
    if (const int count = context->interrupt.count(); count > seen) {
      seen = count;
      question = nullptr;
      if (options.on_interrupt)
        question = [&options, count, &has_trained] { return options.on_interrupt(count, has_trained); };
      if (!question || has_left()) return absl::CancelledError("interrupted");
      continue;
    }
    if (!absl::IsUnavailable(status) && !absl::IsDeadlineExceeded(status)) return status;
    if (!away)
      progress.Note(absl::StrCat("the coordinator at ", client->endpoint().address,
                                 " is away; the job goes on, trying to reconnect"));
    away = true;
    client->WaitToReconnect(backoff.Next(), seen);
  }
}

int ReportOutcome(const v1::Job& job, OutputForm form, Context* context) {
  if (form == OutputForm::kJson) {
    nlohmann::ordered_json line = {{"kind", "job"}};
    line.update(MessageJson(job));
    context->out << JsonLine(line) << std::flush;
  }
  std::ostream& err = context->err;
  // Several mistakes, or one with a command to paste, stand on lines of their own.
  const std::string reason = job.reason().empty() ? "" : absl::StrCat(": ", PrintableLines(job.reason(), 2));
  switch (job.phase()) {
    case v1::PHASE_FINISHED:
      err << job.id() << " finished" << reason << "\n";
      if (!job.exported_path().empty()) err << "model:       " << Printable(job.exported_path()) << "\n";
      break;
    case v1::PHASE_CANCELLED:
      err << job.id() << " was cancelled" << reason << "\n";
      break;
    case v1::PHASE_FAILED:
      err << job.id() << " failed" << reason << "\n";
      for (const std::string& line : job.last_log_lines()) err << "  | " << Printable(line) << "\n";
      break;
    default:
      err << job.id() << " has not ended" << reason << "\n";
  }
  if (job.has_last_checkpoint()) {
    err << "checkpoint:  " << Printable(job.checkpoint_dir()) << "/" << Printable(job.last_checkpoint().name())
        << " (step " << job.last_checkpoint().step() << ")\n";
  }
  const std::string page = job.checkpoint_dir() + "/report.html", logs = job.checkpoint_dir() + "/logs";
  std::error_code unseen;  // The folder may lie on another machine.
  if (job.phase() == v1::PHASE_FAILED && std::filesystem::exists(logs, unseen))
    err << "rank logs:   " << Printable(logs) << "\n";
  if (IsSince(page, job.submitted_time())) err << "report:      " << Printable(page) << "\n";
  return OutcomeOf(job);
}

int Fail(const absl::Status& status, Context* context) {
  // Each line is a message of its own (a job file has many), and none is marked twice.
  context->err << std::string(status.message()) << std::endl;
  return ExitCodeOf(status);
}

int FollowExit(const absl::StatusOr<v1::Job>& job, const std::string& job_id, OutputForm form, Context* context) {
  if (job.ok()) {
    const int code = ReportOutcome(*job, form, context);
    if (code == kExitOk && form == OutputForm::kTable) ShowSample(*job, context);
    return code;
  }
  if (absl::IsCancelled(job.status())) {
    context->err << "\ndetached; " << job_id << " goes on. Back to it: " << context->program << " watch " << job_id
                 << "\nStop it: " << context->program << " cancel " << job_id << std::endl;
    return kExitError;
  }
  return Fail(job.status(), context);
}

}  // namespace tacc::client
