// Reports of ranks, and what they mean for their attempt.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/rank_event.h"
#include "coordinator/core/start_file.h"
#include "graph/ir/program.h"
#include "machine/machine.h"
#include "protocol/rank_events.h"
#include "text/utf8.h"

namespace tacc::coordinator {
namespace {

// Bytes of a text in an event.
constexpr size_t kMaxEventText = 2000;

// `text`, cut to kMaxEventText bytes, as a protobuf string can hold it.
std::string Shorten(const std::string& text) {
  const std::string valid = ValidUtf8(text, kMaxEventText);
  return text.size() <= kMaxEventText ? valid : absl::StrCat(valid, "...");
}

// Whether the rank ended as it was to: it has written the page and left the folder then.
bool HasStoppedByItself(const RankState& rank) {
  return rank.ended.has_value() &&
         (rank.ended->end() == v1::RANK_END_FINISHED || rank.ended->end() == v1::RANK_END_STOPPED);
}

}  // namespace

void Core::OnReport(Worker* worker, const v1::RankReport& report) {
  auto acknowledge = [&](uint64_t sequence) {
    v1::AttachResponse ack;
    *ack.mutable_ack()->mutable_id() = report.id();
    ack.mutable_ack()->set_sequence(sequence);
    Send(*worker, std::move(ack));
  };
  if (report.has_exited()) worker->held.erase(KeyOf(report.id()));
  JobState* job = nullptr;
  RankState* rank = FindRank(*worker, report.id(), &job);
  if (rank == nullptr || rank->ended.has_value()) return acknowledge(report.sequence());
  if (report.sequence() <= rank->seen_sequence) {
    if (report.sequence() <= rank->stored_sequence) acknowledge(rank->stored_sequence);
    return;
  }
  rank->seen_sequence = report.sequence();
  const int index = report.id().rank();
  if (report.has_log()) {
    out_.push_back(StoreLog{report.id(), report.log()});
  } else if (report.has_event()) {
    auto event = ParseRankEvent(report.event());
    if (event.ok()) {
      OnRankEvent(job, index, *event);
    } else {
      // Without its text: events of a rank have its token and its secret, and who may read these may not drive a job.
      Tell(*job, "warning", absl::StrCat("rank ", index, ": ", Shorten(std::string(event.status().message()))));
    }
  }
  if (report.has_exited() || rank->last_word.empty()) {
    rank->stored_sequence = report.sequence();
    out_.push_back(StoreSequence{report.id(), report.sequence()});
  }
  const bool stored = rank->stored_sequence == report.sequence();
  if (report.has_exited()) OnExited(job, index, report.exited());
  // `rank` may be gone from here on: the attempt may have ended.
  if (stored) acknowledge(report.sequence());
}

void Core::OnRankEvent(JobState* job, int index, const RankEvent& event) {
  AttemptState& attempt = *job->attempt;
  RankState& rank = attempt.ranks[index];
  if (event.event == protocol::ListeningEvent::kName && index == 0) {
    OnListening(job, event);
  } else if (event.event == protocol::ReadyEvent::kName) {
    OnReady(job, index, event);
  } else if (event.event == protocol::kStepEvent && index == 0) {
    OnStep(job, event);
  } else if (event.event == protocol::kEvalEvent && index == 0) {
    v1::EvalMetrics eval = event.eval;
    eval.set_attempt(attempt.number);
    NoteEval(eval, job);
    out_.push_back(StoreEval{job->id, eval});
  } else if (event.event == protocol::CheckpointEvent::kName && index == 0) {
    OnCheckpoint(job, event.checkpoint);
  } else if (event.event == protocol::WarningEvent::kName) {
    OnWarning(job, index, event);
  } else if (event.event == protocol::ExportedEvent::kName && index == 0) {
    v1::Fact fact;
    fact.mutable_model_exported()->set_path(event.path);
    Log(job, std::move(fact));
    Tell(*job, "exported", absl::StrCat("exported to ", event.path));
  } else if (event.event == protocol::ReportEvent::kName && index == 0) {
    Tell(*job, "report", absl::StrCat("a page about the run is in ", event.path));
  } else if (event.event == protocol::TraceEvent::kName) {
    Tell(*job, "trace", absl::StrCat("trace of step ", event.step, " in ", event.path));
  } else if (event.event == protocol::FailedEvent::kName) {
    rank.last_word = event.event;
    rank.failed_code = event.code;
    rank.failed_message = Shorten(event.message);
    if (event.code == kDamagedCode) DropResume(job);
  } else if (event.event == protocol::FinishedEvent::kName || event.event == protocol::StoppedEvent::kName) {
    rank.last_word = event.event;
    rank.stop_reason = Shorten(event.message);
    attempt.step = std::max(attempt.step, event.step);
  } else if (event.event == protocol::LogEvent::kName) {
    v1::RankLog log;
    log.set_time(event.time);
    log.add_lines(event.message);
    out_.push_back(StoreLog{IdOf(job->id, attempt.number, index), log});
  }
}

void Core::OnListening(JobState* job, const RankEvent& event) {
  const AttemptState& attempt = *job->attempt;
  v1::Fact fact;
  fact.mutable_rank_listening()->set_attempt(attempt.number);
  fact.mutable_rank_listening()->set_host(attempt.ranks[0].advertise);
  fact.mutable_rank_listening()->set_port(event.port);
  fact.mutable_rank_listening()->set_file(event.file);
  fact.mutable_rank_listening()->set_secret(event.secret);
  Log(job, std::move(fact));
  for (size_t other = 1; other < attempt.ranks.size(); ++other) SendRendezvous(job, static_cast<int>(other));
}

void Core::OnReady(JobState* job, int index, const RankEvent& event) {
  const AttemptState& attempt = *job->attempt;
  v1::Fact fact;
  v1::RankReady* ready = fact.mutable_rank_ready();
  ready->set_attempt(attempt.number);
  ready->set_rank(index);
  ready->set_step(event.step);
  ready->set_resumed_from(event.resumed_from);
  ready->set_arena_bytes(event.arena_bytes);
  ready->set_device_memory_used_bytes(event.device_memory_used_bytes);
  ready->set_load_seconds(event.load_seconds);
  if (!event.endpoint.token().empty()) {
    *ready->mutable_endpoint() = event.endpoint;
    ready->mutable_endpoint()->set_rank(index);
  }
  if (index == 0) {
    ready->mutable_attention()->Assign(event.attention.begin(), event.attention.end());
    ready->mutable_products()->Assign(event.products.begin(), event.products.end());
  }
  Log(job, std::move(fact));
  if (attempt.AllReady() && !job->running_told) {
    job->running_told = true;
    if (job->outage.has_value() && job->outage->in_attempts) TellStarted(*job);
    Tell(*job, "running", absl::StrCat("running from step ", event.step));
  }
}

void Core::OnStep(JobState* job, const RankEvent& event) {
  AttemptState& attempt = *job->attempt;
  v1::StepMetrics metrics = event.metrics;
  metrics.set_attempt(attempt.number);
  const double flops = metrics.has_flops() ? metrics.flops() : job->summary.plan.flops_per_step();
  const double available = metrics.seconds() * attempt.peak_flops_per_second;
  if (flops > 0 && available > 0) metrics.set_mfu(flops / available);
  if (metrics.has_device_memory_used_bytes())
    attempt.ranks[0].device_memory_used_bytes = metrics.device_memory_used_bytes();
  if (job->outage.has_value() && metrics.step() > attempt.best_step_before) {
    job->outage.reset();
    job->reason.clear();
  }
  NoteStep(metrics, job);
  out_.push_back(StoreStep{job->id, metrics});
  // In float16 an overflow only halves the scale, until that is at its least.
  if (metrics.skipped() != 0 && metrics.loss_scale() <= graph::kLeastLossScale) {
    Tell(*job, "warning",
         absl::StrCat("step ", metrics.step(), ": the gradient norm is not finite; the update was skipped"));
  }
}

void Core::OnWarning(JobState* job, int index, const RankEvent& event) {
  if (event.code == kDamagedCode) DropResume(job);
  if (event.code == kNotSavedCode) {
    if (!job->checkpoint_failure.has_value()) {
      v1::Fact fact;
      fact.mutable_checkpoint_failed()->set_message(Shorten(event.message));
      Log(job, std::move(fact));
    }
    job->checkpoint_failure->set_message(Shorten(event.message));
  }
  Tell(*job, "warning", absl::StrCat("rank ", index, ": ", event.code, ": ", Shorten(event.message)));
}

void Core::DropResume(JobState* job) {
  const AttemptState& attempt = *job->attempt;
  if (attempt.resume.empty() || attempt.resume_damaged) return;
  v1::Fact fact;
  fact.mutable_checkpoints_dropped()->add_names(attempt.resume);
  fact.mutable_checkpoints_dropped()->set_why("damaged");
  Log(job, std::move(fact));
}

void Core::OnCheckpoint(JobState* job, v1::Checkpoint checkpoint) {
  for (const v1::Checkpoint& other : job->checkpoints) {
    if (other.name() == checkpoint.name()) return;
  }
  if (checkpoint.name().empty() || checkpoint.name().find('/') != std::string::npos) {
    return Tell(
        *job, "warning",
        absl::StrCat("rank 0 names a checkpoint \"", Shorten(checkpoint.name()), "\", which is no folder name"));
  }
  const AttemptState& attempt = *job->attempt;
  checkpoint.set_attempt(attempt.number);
  v1::Fact fact;
  *fact.mutable_checkpoint_committed()->mutable_checkpoint() = checkpoint;
  Log(job, std::move(fact));
  Tell(*job, "checkpoint",
       absl::StrCat("checkpoint of step ", checkpoint.step(), ": ", checkpoint.name(), ", ",
                    SizeText(checkpoint.size_bytes())));
  DeleteOldCheckpoints(job);
}

void Core::DeleteOldCheckpoints(JobState* job) {
  const AttemptState& attempt = *job->attempt;
  const size_t limit = std::max(1, job->spec.checkpoint().save_total_limit());
  v1::AttachResponse message;
  v1::DeleteCheckpoints* request = message.mutable_delete_checkpoints();
  const size_t excess = job->checkpoints.size() > limit ? job->checkpoints.size() - limit : 0;
  for (size_t i = 0; i < job->checkpoints.size(); ++i) {
    if (i < excess) {
      request->add_names(job->checkpoints[i].name());
    } else {
      request->add_keep(job->checkpoints[i].name());
    }
  }
  const bool leftovers = attempt.number > job->first_attempt;
  if (excess == 0 && !leftovers) return;
  request->set_request(++last_request_);
  request->set_checkpoint_dir(job->spec.checkpoint().dir());
  request->set_first_attempt(job->first_attempt);
  if (leftovers) request->set_older_than_attempt(attempt.number);
  job->deleting.clear();  // What an earlier request did not delete is in this one.
  job->deleting[last_request_] = {attempt.ranks[0].worker, {request->names().begin(), request->names().end()}};
  if (const Worker* worker = members_.ByName(attempt.ranks[0].worker)) Send(*worker, std::move(message));
}

void Core::OnDeleted(const Worker& worker, const v1::DeleteCheckpointsResult& result) {
  for (auto& [id, job] : jobs_) {
    auto deleting = job.deleting.find(result.request());
    if (deleting == job.deleting.end() || deleting->second.worker != worker.name) continue;
    v1::Fact fact;
    fact.mutable_checkpoints_dropped()->set_why("deleted");
    std::string text;
    for (const std::string& name : result.deleted()) {
      absl::StrAppend(&text, text.empty() ? "" : ", ", name);
      for (const std::string& asked : deleting->second.names) {
        if (asked == name) fact.mutable_checkpoints_dropped()->add_names(name);
      }
    }
    if (!fact.checkpoints_dropped().names().empty()) Log(&job, std::move(fact));
    if (!text.empty()) Tell(job, "checkpoint_deleted", absl::StrCat("deleted ", Shorten(text)));
    for (const std::string& error : result.errors())
      Tell(job, "warning", absl::StrCat("deleting checkpoints: ", Shorten(error)));
    job.deleting.erase(deleting);
    return;
  }
}

const Worker* Core::WorkerOf(const JobState& job) {
  std::vector<std::string> names;
  if (job.HasRun()) {
    for (const RankState& rank : job.attempt->ranks) names.push_back(rank.worker);
  }
  names.push_back(job.claimer);
  for (const std::string& name : names) {
    const Worker* worker = members_.ByName(name);
    if (worker != nullptr && worker->Attached()) return worker;
  }
  return nullptr;
}

void Core::AskForReport(JobState* job) {
  if (!job->HasRun() || job->ended->phase() == v1::PHASE_FINISHED) return;
  const RankState& first = job->attempt->ranks[0];
  const Worker* worker = WorkerOf(*job);
  if (HasStoppedByItself(first) || worker == nullptr) return;
  const bool has_failed = job->ended->phase() == v1::PHASE_FAILED;
  v1::AttachResponse message;
  v1::WriteReport* request = message.mutable_write_report();
  request->set_request(++last_request_);
  request->set_checkpoint_dir(job->spec.checkpoint().dir());
  request->set_service(options_.service);
  request->set_job(job->id);
  request->set_run(RunText(*job));
  request->set_outcome(has_failed ? "failed" : "was cancelled");
  if (has_failed) request->set_failure(job->ended->reason());
  request->set_step(job->step);
  request->set_max_steps(job->MaxSteps());
  if (!job->checkpoints.empty())
    request->set_checkpoint(absl::StrCat(job->spec.checkpoint().dir(), "/", job->checkpoints.back().name()));
  request->set_peak_memory_bytes(first.device_memory_used_bytes > 0 ? first.device_memory_used_bytes
                                                                    : first.peak_memory_bytes);
  job->report.emplace(last_request_, worker->name);
  Send(*worker, std::move(message));
}

void Core::LeaveFolder(const JobState& job) {
  if (!job.HasRun() && job.claimer.empty()) return;
  if (job.HasRun()) {
    const RankState& first = job.attempt->ranks[0];
    // One that is lost may still write: it is held for dead when it renews nothing.
    if (HasStoppedByItself(first) || (first.ended.has_value() && first.ended->end() == v1::RANK_END_LOST)) return;
  }
  const Worker* worker = WorkerOf(job);
  if (worker == nullptr) return;
  v1::AttachResponse message;
  message.mutable_leave_folder()->set_checkpoint_dir(job.spec.checkpoint().dir());
  message.mutable_leave_folder()->set_service(options_.service);
  message.mutable_leave_folder()->set_job(job.id);
  Send(*worker, std::move(message));
}

void Core::OnReportWritten(const Worker& worker, const v1::WriteReportResult& result) {
  for (auto& [id, job] : jobs_) {
    if (!job.report.has_value() || *job.report != std::pair(result.request(), worker.name)) continue;
    job.report.reset();
    if (!result.error().empty())
      Tell(job, "warning", absl::StrCat("the page about the run could not be written: ", Shorten(result.error())));
    if (!result.path().empty()) Tell(job, "report", absl::StrCat("a page about the run is in ", result.path()));
    return;
  }
}

void Core::OnExited(JobState* job, int index, const v1::RankExited& exited) {
  RankState& rank = job->attempt->ranks[index];
  v1::Fact fact;
  v1::RankEnded* ended = fact.mutable_rank_ended();
  ended->set_attempt(job->attempt->number);
  ended->set_rank(index);
  if (exited.has_exit_code()) ended->set_exit_code(exited.exit_code());
  // One that had said why it fails had failed before it was killed: its process may take long to end.
  const bool was_killed = exited.killed() && rank.last_word != protocol::FailedEvent::kName;
  if (was_killed || !exited.killed()) ended->set_signal(exited.signal());
  ended->set_step(job->attempt->step);
  ended->set_code(rank.failed_code);
  ended->set_message(rank.failed_message);
  for (const std::string& line : exited.last_log_lines()) {
    if (ended->last_log_lines_size() < 20) ended->add_last_log_lines(Shorten(line));
  }
  if (was_killed) {
    ended->set_end(v1::RANK_END_KILLED);
  } else if (!exited.start_error().empty()) {
    ended->set_end(v1::RANK_END_FAILED);
    ended->set_code(kStartCode);
    ended->set_message(Shorten(exited.start_error()));
  } else if (exited.has_exit_code() && exited.exit_code() == 0 && rank.last_word == protocol::FinishedEvent::kName) {
    ended->set_end(v1::RANK_END_FINISHED);
  } else if (exited.has_exit_code() && exited.exit_code() == 0 && rank.last_word == protocol::StoppedEvent::kName) {
    ended->set_end(v1::RANK_END_STOPPED);
    ended->set_message(rank.stop_reason);
  } else {
    ended->set_end(v1::RANK_END_FAILED);
    if (exited.has_exit_code() && exited.exit_code() == 0) ended->set_message("it ended without a word");
  }
  Log(job, std::move(fact));
  Advance(job);
}

void Core::OnProgramUnread(const ProgramUnread& unread) {
  JobState* job = FindOpen(unread.id.job());
  if (job == nullptr || !job->Active() || job->attempt->number != unread.id.attempt()) return;
  const RankState& rank = job->attempt->ranks[unread.id.rank()];
  if (rank.ended.has_value()) return;
  if (Worker* worker = members_.ByName(rank.worker)) worker->held.erase(KeyOf(unread.id));
  job->program_lost = job->program_lost || unread.is_lost;
  v1::Fact fact;
  v1::RankEnded* ended = fact.mutable_rank_ended();
  ended->set_attempt(unread.id.attempt());
  ended->set_rank(unread.id.rank());
  ended->set_end(v1::RANK_END_FAILED);
  ended->set_code(kUnavailableCode);
  ended->set_message(Shorten(unread.message));
  ended->set_step(job->attempt->step);
  Log(job, std::move(fact));
  Advance(job);
}

void Core::Advance(JobState* job) {
  if (!job->Active()) return;
  AttemptState& attempt = *job->attempt;
  const bool must_go = attempt.Failing() || (job->cancel.has_value() && *job->cancel == v1::CANCEL_MODE_NOW);
  for (size_t i = 0; i < attempt.ranks.size(); ++i) {
    RankState& rank = attempt.ranks[i];
    if (rank.ended.has_value()) continue;
    const Worker* worker = members_.ByName(rank.worker);
    if (worker == nullptr || !worker->Attached()) continue;  // CatchUp or the lease sees to it.
    const v1::RankId id = IdOf(job->id, attempt.number, static_cast<int>(i));
    v1::AttachResponse message;
    if (must_go && !rank.kill_sent) {
      rank.kill_sent = true;
      *message.mutable_kill_rank()->mutable_id() = id;
      Send(*worker, std::move(message));
    } else if (!must_go && job->cancel.has_value() && !rank.stop_sent) {
      rank.stop_sent = true;
      *message.mutable_rank_command()->mutable_id() = id;
      message.mutable_rank_command()->set_line(StopLine());
      Send(*worker, std::move(message));
    }
  }
  if (attempt.AllEnded()) EndAttempt(job);
}

}  // namespace tacc::coordinator
