#include "worker/daemon/supervision/supervisor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "machine/exit_code.h"
#include "nlohmann/json.hpp"
#include "protocol/rank_events.h"

namespace tacc::worker {
namespace {

constexpr size_t kLastLogLines = 20;
// A message of log lines stays small, and a flood of lines is not one message each.
constexpr size_t kLogLinesPerReport = 200;

Action Simple(Action::Kind kind) {
  Action action;
  action.kind = kind;
  return action;
}

// An event of the daemon's own, as a rank would write it.
std::string LineOf(nlohmann::json event, double now) {
  event["time"] = now;
  return event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Supervisor::AddExit(const RankKey& key, ExitReport exit, double now) {
  Report report;
  report.key = key;
  report.kind = ReportKind::kExit;
  report.time = now;
  report.exit = std::move(exit);
  reports_.Add(std::move(report));
}

Supervisor::Actions Supervisor::Begin(RankStart start) {
  running_ = start.key;
  kill_sent_ = false;
  killed_on_request_ = false;
  said_end_ = false;
  failed_message_.clear();
  last_log_lines_.clear();
  metrics_.clear();
  Action action;
  action.kind = Action::Kind::kSpawn;
  action.start = std::move(start);
  return {std::move(action)};
}

Supervisor::Actions Supervisor::BeginNext() {
  if (!next_.has_value()) return {};
  RankStart next = *std::move(next_);
  next_.reset();
  Actions actions = Begin(std::move(next));
  for (std::string& line : next_lines_) {
    actions.push_back(Simple(Action::Kind::kWriteLine));
    actions.back().line = std::move(line);
  }
  next_lines_.clear();
  return actions;
}

Supervisor::Actions Supervisor::StartRank(RankStart start, double now) {
  // Asked again after a reconnect: it runs, waits to run, or its exit is on its way.
  if (reports_.IsHeld(start.key) || running_ == start.key || (next_.has_value() && next_->key == start.key)) return {};
  if (is_stopping_) {
    ExitReport exit;
    exit.start_error = "the worker is ending";
    AddExit(start.key, std::move(exit), now);
    return {};
  }
  if (stuck_.has_value()) {
    ExitReport exit;
    exit.start_error = *stuck_;
    AddExit(start.key, std::move(exit), now);
    return {};
  }
  const RankKey& current = next_.has_value() ? next_->key : running_.value_or(RankKey());
  if (current.job == start.key.job && current.attempt > start.key.attempt) {
    ExitReport exit;
    exit.start_error = absl::StrCat("attempt ", current.attempt, " is newer than attempt ", start.key.attempt);
    AddExit(start.key, std::move(exit), now);
    return {};
  }
  if (!running_.has_value()) return Begin(std::move(start));
  // The coordinator says whose the device is: what runs now is over.
  if (next_.has_value()) {
    ExitReport exit;
    exit.start_error = absl::StrCat("replaced by ", start.key.Text(), " before it started");
    AddExit(next_->key, std::move(exit), now);
  }
  next_ = std::move(start);
  next_lines_.clear();
  return Kill();
}

Supervisor::Actions Supervisor::KillRank(const RankKey& key, double now) {
  if (running_ == key) {
    killed_on_request_ = true;
    return Kill();
  }
  ExitReport exit;
  exit.killed = true;
  if (next_.has_value() && next_->key == key) {
    exit.start_error = "killed before it started";
    next_.reset();
  } else if (reports_.IsHeld(key)) {
    return {};  // Its exit is on its way.
  } else {
    exit.killed = false;
    exit.start_error = "not known to this worker";
  }
  AddExit(key, std::move(exit), now);
  return {};
}

Supervisor::Actions Supervisor::RankCommand(const RankKey& key, std::string line) {
  if (next_.has_value() && next_->key == key) {
    next_lines_.push_back(std::move(line));
    return {};
  }
  if (running_ != key || kill_sent_) return {};
  Action action = Simple(Action::Kind::kWriteLine);
  action.line = std::move(line);
  return {std::move(action)};
}

Supervisor::Actions Supervisor::StartFailed(const std::string& error, double now) {
  if (!running_.has_value()) return {};
  ExitReport exit;
  exit.start_error = error;
  exit.killed = killed_on_request_;
  AddExit(*running_, std::move(exit), now);
  running_.reset();
  return BeginNext();
}

void Supervisor::EventLine(const std::string& line, double now) {
  if (!running_.has_value()) return;
  const nlohmann::json event = ParseJson(line);
  const auto name = event.is_object() ? event.find("event") : event.end();
  if (name == event.end() || !name->is_string()) {
    LogLine(line, now);  // Something a library printed.
    return;
  }
  Report report;
  report.key = *running_;
  report.time = now;
  report.event = line;
  report.kind = *name == protocol::kStepEvent ? ReportKind::kStepMetric : ReportKind::kEvent;
  said_end_ = said_end_ || *name == protocol::FinishedEvent::kName || *name == protocol::StoppedEvent::kName;
  if (*name == protocol::FailedEvent::kName) {
    if (const auto failed = protocol::ReadEvent<protocol::FailedEvent>(event); failed.ok())
      failed_message_ = failed->message;
  }
  for (const auto& item : event.items()) {
    if (item.value().is_number())
      metrics_[absl::StrCat(name->get<std::string>(), ".", item.key())] = item.value().get<double>();
  }
  FlushLogs(now);
  reports_.Add(std::move(report));
}

void Supervisor::Warn(const std::string& code, const std::string& message, double now) {
  EventLine(LineOf(protocol::EventJson(protocol::WarningEvent{.code = code, .message = message}), now), now);
}

void Supervisor::Fail(const std::string& code, const std::string& message, double now) {
  EventLine(LineOf(protocol::EventJson(protocol::FailedEvent{.code = code, .message = message}), now), now);
}

void Supervisor::LogLine(const std::string& line, double now) {
  if (!running_.has_value()) return;
  last_log_lines_.push_back(line);
  if (last_log_lines_.size() > kLastLogLines) last_log_lines_.pop_front();
  pending_logs_.push_back(line);
  if (pending_logs_.size() >= kLogLinesPerReport) FlushLogs(now);
}

void Supervisor::FlushLogs(double now) {
  if (pending_logs_.empty() || !running_.has_value()) return;
  Report report;
  report.key = *running_;
  report.time = now;
  report.kind = ReportKind::kLog;
  report.log_lines = std::move(pending_logs_);
  pending_logs_.clear();
  reports_.Add(std::move(report));
}

Supervisor::Process Supervisor::process() const {
  if (stuck_.has_value()) return Process::kStuck;
  if (!running_.has_value()) return Process::kNone;
  if (kill_sent_) return Process::kKilled;
  return failed_message_.empty() ? Process::kRunning : Process::kFailed;
}

void Supervisor::GiveUp(const std::string& why, double now) {
  if (!running_.has_value() || !kill_sent_) return;
  stuck_ = why;
  Warn("process_stuck", why, now);
  ExitReport exit;
  exit.killed = killed_on_request_;
  exit.last_log_lines.assign(last_log_lines_.begin(), last_log_lines_.end());
  AddExit(*running_, std::move(exit), now);
  running_.reset();
  if (!next_.has_value()) return;
  ExitReport never_started;
  never_started.start_error = why;
  AddExit(next_->key, std::move(never_started), now);
  next_.reset();
}

Supervisor::Actions Supervisor::Exited(const ProcessEnd& end, double now) {
  if (stuck_.has_value()) {
    stuck_.reset();
    failure_ = "the process that did not end has gone";
    return {};
  }
  if (!running_.has_value()) return {};
  FlushLogs(now);
  ExitReport exit;
  exit.exit_code = end.exit_code;
  exit.signal = end.signal;
  exit.last_log_lines.assign(last_log_lines_.begin(), last_log_lines_.end());
  // One that had come to its end by itself just then was not killed.
  exit.killed = killed_on_request_ && !(said_end_ && end.exit_code == 0);
  const bool is_fine = end.exit_code == 0 || end.exit_code == kExitBadInput || end.exit_code == kExitNonfinite ||
                       end.exit_code == kExitStuck;
  // One that was killed may have failed before.
  if (kill_sent_ ? !failed_message_.empty() : !exit.killed && !is_fine) {
    const std::string how =
        end.exit_code.has_value() ? absl::StrCat("exit code ", *end.exit_code) : absl::StrCat("signal ", end.signal);
    failure_ = absl::StrCat(running_->Text(), ": ", failed_message_.empty() ? how : failed_message_);
  }
  AddExit(*running_, std::move(exit), now);
  running_.reset();
  return BeginNext();
}

absl::optional<std::string> Supervisor::TakeFailure() { return std::exchange(failure_, absl::nullopt); }

Supervisor::Actions Supervisor::Stop(double now) {
  is_stopping_ = true;
  if (next_.has_value()) {
    ExitReport exit;
    exit.start_error = "the worker is ending";
    AddExit(next_->key, std::move(exit), now);
    next_.reset();
  }
  if (!running_.has_value() || kill_sent_) return {};
  killed_on_request_ = true;
  return {Simple(Action::Kind::kCloseStdin)};
}

Supervisor::Actions Supervisor::Kill() {
  if (!running_.has_value() || kill_sent_) return {};
  kill_sent_ = true;
  return {Simple(Action::Kind::kKill)};
}

std::vector<HeldRank> Supervisor::Held() const {
  std::vector<HeldRank> held = reports_.Held();
  for (const absl::optional<RankKey>& key :
       {running_, next_.has_value() ? absl::optional<RankKey>(next_->key) : absl::nullopt}) {
    if (key.has_value() && !reports_.IsHeld(*key)) held.push_back({*key, false});
  }
  return held;
}

}  // namespace tacc::worker
