// Workers come, go, come back, and fall silent.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/core.h"
#include "coordinator/core/start_file.h"

namespace tacc::coordinator {

void Core::OnAttached(const WorkerAttached& attached) {
  auto result = members_.Attach(now_.steady, attached.session, attached.registration);
  if (!result.ok()) {
    out_.push_back(CloseSession{attached.session, result.status()});
    return;
  }
  Worker* worker = result->worker;
  if (result->replaced_session != 0) {
    out_.push_back(CloseSession{result->replaced_session, absl::AbortedError("the worker has attached again")});
  }
  ForgetReports(worker->name);
  v1::AttachResponse welcome;
  welcome.mutable_registered()->set_lease_seconds(options_.lease_seconds);
  welcome.mutable_registered()->set_heartbeat_seconds(options_.heartbeat_seconds);
  welcome.mutable_registered()->set_version(options_.version);
  welcome.mutable_registered()->set_protocol(result->protocol);
  Send(*worker, std::move(welcome));

  std::set<RankKey> known;
  for (const v1::HeldRank& held : attached.registration.ranks()) known.insert(KeyOf(held.id()));
  worker->reserved.clear();
  std::vector<std::pair<JobState*, int>> adopted;
  bool lost = false;
  for (const auto& [number, id] : queue_) {
    JobState& job = jobs_[id];
    if (!job.Active()) continue;
    for (size_t i = 0; i < job.attempt->ranks.size(); ++i) {
      const RankState& rank = job.attempt->ranks[i];
      if (rank.worker != worker->name || rank.ended.has_value()) continue;
      worker->reserved = id;
      if (known.count({id, job.attempt->number, static_cast<int>(i)}) != 0) {
        adopted.emplace_back(&job, static_cast<int>(i));
      } else {
        lost = true;
      }
    }
  }
  for (const auto& [job, rank] : adopted) CatchUp(worker, job, rank);
  for (const RankKey& key : worker->held) {
    JobState* job = nullptr;
    const v1::RankId id = IdOf(std::get<0>(key), std::get<1>(key), std::get<2>(key));
    const RankState* rank = FindRank(*worker, id, &job);
    if (rank != nullptr && !rank->ended.has_value()) continue;
    // A rank of an attempt that is over, or of a coordinator that is not this one.
    v1::AttachResponse kill;
    *kill.mutable_kill_rank()->mutable_id() = id;
    Send(*worker, std::move(kill));
  }
  if (lost) LoseRanks(worker->name, "its daemon came back without it");
}

void Core::CatchUp(Worker* worker, JobState* job, int rank_index) {
  RankState& rank = job->attempt->ranks[rank_index];
  rank.kill_sent = false;
  rank.stop_sent = false;
  // Reports that were acted upon but not acknowledged come again and count as new ones only if their effect was not
  // stored.
  rank.seen_sequence = std::max(rank.seen_sequence, rank.stored_sequence);
  if (!job->attempt->host.empty() && rank_index != 0 && !rank.ready) SendRendezvous(job, rank_index);
  Advance(job);
}

void Core::OnDetached(uint64_t session) {
  Worker* worker = members_.BySession(session);
  if (worker == nullptr) return;
  members_.Detach(session);
  ForgetReports(worker->name);
  for (const auto& [number, id] : queue_) {
    JobState& job = jobs_[id];
    if (!job.check.has_value()) continue;
    for (const std::string& name : job.check->workers) {
      if (name != worker->name) continue;
      AbandonPathCheck(&job);
      break;
    }
  }
}

void Core::ForgetReports(const std::string& worker) {
  for (auto& [id, job] : jobs_) {
    if (job.report.has_value() && job.report->second == worker) job.report.reset();
  }
}

void Core::OnMessage(const WorkerMessage& message) {
  Worker* worker = members_.BySession(message.session);
  if (worker == nullptr) return;  // Of a stream that was closed.
  worker->last_heard = now_.steady;
  switch (message.message.message_case()) {
    case v1::AttachRequest::kHeartbeat:
      return OnHeartbeat(worker, message.message.heartbeat());
    case v1::AttachRequest::kRankReport:
      return OnReport(worker, message.message.rank_report());
    case v1::AttachRequest::kCheckPathsResult:
      return OnPathsChecked(worker, message.message.check_paths_result());
    case v1::AttachRequest::kDeleteCheckpointsResult:
      return OnDeleted(*worker, message.message.delete_checkpoints_result());
    case v1::AttachRequest::kWriteReportResult:
      return OnReportWritten(*worker, message.message.write_report_result());
    case v1::AttachRequest::kDeviceState:
      worker->trouble = message.message.device_state().trouble();
      if (message.message.device_state().has_device()) worker->device = message.message.device_state().device();
      return;
    case v1::AttachRequest::kRegister:
    case v1::AttachRequest::MESSAGE_NOT_SET:
      break;
  }
  out_.push_back(
      CloseSession{message.session, absl::InvalidArgumentError(absl::StrCat(
                                        "worker ", worker->name, " sent a message that has no place in its stream"))});
  OnDetached(message.session);
}

void Core::OnHeartbeat(Worker* worker, const v1::Heartbeat& heartbeat) {
  if (!heartbeat.has_sample()) return;
  JobState* job = nullptr;
  RankState* rank = FindRank(*worker, heartbeat.sample().id(), &job);
  if (rank == nullptr) return;
  rank->sample = heartbeat.sample();
  rank->peak_memory_bytes = std::max(rank->peak_memory_bytes, heartbeat.sample().peak_memory_bytes());
}

void Core::OnTick() {
  for (const Worker& worker : members_.Expire(now_.steady)) {
    if (worker.session != 0) {
      out_.push_back(CloseSession{worker.session, absl::DeadlineExceededError(absl::StrCat(
                                                      "no heartbeat for ", options_.lease_seconds, " s"))});
    }
    ForgetReports(worker.name);
    LoseRanks(worker.name, absl::StrCat("no word from its daemon for ", options_.lease_seconds, " s"));
  }
  std::vector<std::string> ids;
  for (const auto& [number, id] : queue_) ids.push_back(id);
  for (const std::string& id : ids) {
    JobState& job = jobs_[id];
    if (job.check.has_value() && now_.steady > job.check->deadline) {
      std::string silent;
      for (const auto& [request, worker] : job.check->pending)
        absl::StrAppend(&silent, silent.empty() ? "" : ", ", worker);
      const std::string text = absl::StrCat("worker ", silent, " did not answer for ", options_.path_check_seconds,
                                            " s when asked for the job's paths (is a file system stuck?)");
      AbandonPathCheck(&job);
      if (job.outage.has_value()) {
        WaitOut(&job, text);
      } else {
        Tell(job, "warning", absl::StrCat(text, "; it is asked again"));
      }
    }
    const v1::TrainSpec& train = job.spec.train();
    if (train.has_max_seconds() && job.started_time > 0 && now_.wall - job.started_time >= train.max_seconds()) {
      Cancel(&job, v1::CANCEL_MODE_CHECKPOINT,
             absl::StrCat("cancelled by train.max_seconds (", train.max_seconds(), ")"));
      if (job.ended.has_value()) continue;
    }
    const double timeout = options_.collective_timeout_seconds;
    std::optional<std::string> hang;
    if (job.Phase() == v1::PHASE_RUNNING) hang = FindHang(job, timeout, describe_);
    if (job.Phase() == v1::PHASE_STARTING && job.Active()) hang = FindStartHang(job, timeout);
    if (hang.has_value()) {
      v1::Fact fact;
      fact.mutable_attempt_condemned()->set_attempt(job.attempt->number);
      fact.mutable_attempt_condemned()->set_cause(*hang);
      Log(&job, std::move(fact));
      Tell(job, "hang", *hang);
      Advance(&job);
    }
  }
}

void Core::LoseRanks(const std::string& worker, const std::string& why) {
  std::vector<std::string> ids;
  for (const auto& [number, id] : queue_) ids.push_back(id);
  for (const std::string& id : ids) {
    JobState& job = jobs_[id];
    if (job.check.has_value()) {
      for (const std::string& name : job.check->workers) {
        if (name != worker) continue;
        AbandonPathCheck(&job);
        break;
      }
    }
    if (!job.Active()) continue;
    bool any = false;
    for (size_t i = 0; i < job.attempt->ranks.size(); ++i) {
      const RankState& rank = job.attempt->ranks[i];
      if (rank.worker != worker || rank.ended.has_value()) continue;
      v1::Fact fact;
      v1::RankEnded* ended = fact.mutable_rank_ended();
      ended->set_attempt(job.attempt->number);
      ended->set_rank(static_cast<int>(i));
      ended->set_end(v1::RANK_END_LOST);
      ended->set_message(why);
      ended->set_step(job.attempt->step);
      Log(&job, std::move(fact));
      any = true;
    }
    if (any) Advance(&job);
  }
}

}  // namespace tacc::coordinator
