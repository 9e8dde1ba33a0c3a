// From a gang of workers to ranks: paths are checked on every worker, the checkpoint to resume from is chosen, ranks
// are started and introduced.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/core/core.h"
#include "coordinator/core/resume.h"
#include "coordinator/core/start_file.h"
#include "proto/tacc/v1/upload_name.h"
#include "protocol/start_file.h"

namespace tacc::coordinator {
namespace {

// A rank's own time-out of a collective only says that it waited. It comes later than the coordinator's look at all
// ranks, which names the one that is missing.
constexpr double kRankTimeoutAfterSeconds = 30;

// The upload that the job's ranks read; empty: none.
std::string UploadOf(const JobState& job) { return UploadId(ModelDir(job.spec)); }

}  // namespace

void Core::StartPathCheck(JobState* job, const std::vector<std::string>& workers) {
  PathCheck check;
  check.workers = workers;
  check.owner = OwnerText(*job, options_.service);
  check.deadline = now_.steady + options_.path_check_seconds;
  job->check = std::move(check);
  for (const std::string& name : workers) members_.ByName(name)->reserved = job->id;
  // All machines at once, not those of further ranks when rank 0's has it.
  if (const std::string upload = UploadOf(*job); !upload.empty()) {
    for (const std::string& name : workers) {
      Worker& worker = *members_.ByName(name);
      std::erase_if(worker.fetches, [this](const std::string& id) { return FindOpen(id) == nullptr; });
      worker.fetches.insert(job->id);
      v1::AttachResponse message;
      message.mutable_fetch_upload()->set_id(upload);
      Send(worker, std::move(message));
    }
  }
  SendPathCheck(job, workers.front(), v1::CHECK_PATHS_MODE_CLAIM);
}

void Core::SendPathCheck(JobState* job, const std::string& worker, v1::CheckPathsMode mode) {
  v1::AttachResponse message;
  v1::CheckPaths* request = message.mutable_check_paths();
  request->set_request(++last_request_);
  const v1::JobSpec& spec = job->spec;
  for (const std::string& path : {spec.model().path(), spec.data().path(), spec.data().eval_path()}) {
    if (!path.empty() && UploadId(path).empty()) request->add_readable(path);
  }
  if (const std::string upload = UploadOf(*job); !upload.empty()) {
    request->add_uploads(upload);
  } else if (spec.model().has_graph() && job->summary.weights == "pretrained") {
    request->add_readable(ModelDir(spec));
  }
  request->set_checkpoint_dir(spec.checkpoint().dir());
  request->set_owner(job->check->owner);
  request->set_mode(mode);
  const std::string& resume = spec.checkpoint().resume_from_checkpoint();
  if (!resume.empty() && resume[0] == '/') request->set_resume_path(resume);
  if (mode == v1::CHECK_PATHS_MODE_CLAIM) {
    request->set_export_dir(ExportDir(spec));
    request->set_last_attempt(job->HasRun() ? job->attempt->number : 0);
    for (const auto& [number, id] : queue_) {
      if (id != job->id && jobs_[id].spec.name() == spec.name()) request->add_open_jobs(id);
    }
  }
  request->set_has_run(job->HasRun());
  if (const std::string dir = ModelDir(spec); UploadId(dir).empty()) request->set_model_dir(dir);
  job->check->pending[last_request_] = worker;
  Send(*members_.ByName(worker), std::move(message));
}

void Core::AbandonPathCheck(JobState* job) {
  if (!job->check.has_value()) return;
  job->check.reset();
  Release(job->id);
}

void Core::OnPathsChecked(Worker* worker, const v1::CheckPathsResult& result) {
  JobState* job = nullptr;
  for (const auto& [number, id] : queue_) {
    JobState& candidate = jobs_[id];
    if (!candidate.check.has_value()) continue;
    auto pending = candidate.check->pending.find(result.request());
    if (pending == candidate.check->pending.end() || pending->second != worker->name) continue;
    candidate.check->pending.erase(pending);
    job = &candidate;
    break;
  }
  if (job == nullptr) return;
  if (!result.problems().empty()) {
    std::string text;
    // A job that has run has had all of it: nothing but its user ends it.
    bool may_pass = true;
    for (const v1::PathProblem& problem : result.problems()) {
      absl::StrAppend(&text, text.empty() ? "" : "; ", problem.message());
      may_pass = may_pass && (job->HasRun() || problem.kind() == v1::PATH_PROBLEM_KIND_UNAVAILABLE);
    }
    const std::string reason = absl::StrCat("worker ", worker->name, ": ", text);
    AbandonPathCheck(job);
    if (may_pass) return WaitOut(job, reason);
    return EndJob(job, v1::PHASE_FAILED, reason, v1::FAILURE_CODE_BAD_INPUT, {});
  }
  if (!job->check->expecting) {
    job->check->expecting = true;
    job->check->claim = result;
    job->claimer = worker->name;
    for (size_t rank = 1; rank < job->check->workers.size(); ++rank) {
      SendPathCheck(job, job->check->workers[rank], v1::CHECK_PATHS_MODE_EXPECT);
    }
  }
  if (job->check->pending.empty()) StartAttempt(job);
}

void Core::StartAttempt(JobState* job) {
  const PathCheck check = std::move(*job->check);
  job->check.reset();
  const coordinator::Resume resume = ChooseResume(*job, check.claim);
  // While it waits it looks often: only what is dropped now is news.
  if (resume.away.empty() || !resume.damaged.empty()) {
    for (const std::string& note : resume.notes) Tell(*job, "warning", note);
  }
  if (!resume.damaged.empty()) {
    v1::Fact fact;
    for (const std::string& name : resume.damaged) fact.mutable_checkpoints_dropped()->add_names(name);
    fact.mutable_checkpoints_dropped()->set_why("damaged");
    Log(job, std::move(fact));
  }
  if (!resume.away.empty()) {
    Release(job->id);
    return WaitOut(job, resume.away);
  }
  if (!resume.error.empty()) return EndJob(job, v1::PHASE_FAILED, resume.error, v1::FAILURE_CODE_BAD_INPUT, {});
  if (resume.finished) {
    if (!resume.adopted.empty()) {
      v1::Fact fact;
      *fact.mutable_checkpoint_committed()->mutable_checkpoint() = resume.adopted.back();
      Log(job, std::move(fact));
    }
    if (check.claim.exported_checkpoint() == resume.from && job->exported_path.empty()) {
      v1::Fact fact;
      fact.mutable_model_exported()->set_path(ExportDir(job->spec));
      Log(job, std::move(fact));
    }
    const v1::TrainSpec& train = job->spec.train();
    return EndJob(
        job, v1::PHASE_FINISHED,
        absl::StrCat("already trained to step ", resume.step, " (", resume.from, "); to train further raise ",
                     train.has_max_steps() ? absl::StrCat("train.max_steps (", train.max_steps())
                                           : absl::StrCat("train.num_train_epochs (", train.num_train_epochs()),
                     ") and submit again"),
        v1::FAILURE_CODE_UNSPECIFIED, {});
  }
  if (!check.claim.export_problem().empty()) {
    // Found out before anything is trained. What has begun to train goes on: its checkpoints can be exported elsewhere.
    if (job->first_attempt == 0) {
      return EndJob(job, v1::PHASE_FAILED,
                    absl::StrCat("the model could not be exported: ", check.claim.export_problem()),
                    v1::FAILURE_CODE_BAD_INPUT, {});
    }
    Tell(*job, "warning", absl::StrCat("the model could not be exported now: ", check.claim.export_problem()));
  }
  if (job->first_attempt == 0 && !resume.from.empty()) {
    for (const std::string& change : ChangedSettings(check.claim.previous_owner(), check.owner)) {
      Tell(*job, "resumed", absl::StrCat("changed since the last run: ", change));
    }
  }

  const int before = job->attempt.has_value() ? job->attempt->number : 0;
  const int last = std::max(before, check.claim.max_attempt());
  if (last >= protocol::kMaxAttempt) {
    return EndJob(job, v1::PHASE_FAILED,
                  absl::StrCat("checkpoint.dir ", job->spec.checkpoint().dir(), " has something of attempt ", last,
                               ", and attempts have numbers up to ", protocol::kMaxAttempt, "; give another folder"),
                  v1::FAILURE_CODE_BAD_INPUT, {});
  }

  v1::Fact fact;
  v1::AttemptStarted* started = fact.mutable_attempt_started();
  started->set_attempt(last + 1);
  for (size_t rank = 0; rank < check.workers.size(); ++rank) {
    const Worker& worker = *members_.ByName(check.workers[rank]);
    v1::Placement* placement = started->add_placement();
    placement->set_rank(static_cast<int>(rank));
    placement->set_worker(worker.name);
    placement->set_instance(worker.instance);
    placement->set_advertise(worker.advertise);
  }
  started->set_resume(resume.from);
  for (const v1::Checkpoint& checkpoint : resume.adopted) *started->add_adopted() = checkpoint;
  started->set_peak_flops_per_second(PeakFlopsPerSecond(members_, check.workers, job->summary.plan.precision()));
  started->set_best_step(job->best_step);
  Log(job, std::move(fact));
  job->running_told = false;

  if (!job->outage.has_value() || !job->outage->in_attempts) TellStarted(*job);
  for (size_t i = 0; i < check.workers.size(); ++i) {
    const int rank = static_cast<int>(i);
    Worker* worker = members_.ByName(check.workers[i]);
    const v1::RankId id = IdOf(job->id, job->attempt->number, rank);
    worker->held.insert(KeyOf(id));
    v1::AttachResponse message;
    *message.mutable_start_rank()->mutable_id() = id;
    message.mutable_start_rank()->set_start(StartFile(*job, rank, options_.version, options_.service,
                                                      options_.collective_timeout_seconds + kRankTimeoutAfterSeconds));
    Send(*worker, std::move(message));
  }
}

void Core::TellStarted(const JobState& job) {
  const AttemptState& attempt = *job.attempt;
  std::string text = absl::StrCat("attempt ", attempt.number, " on ");
  absl::StrAppend(&text, absl::StrJoin(attempt.ranks, ", ",
                                       [](std::string* out, const RankState& rank) { out->append(rank.worker); }));
  absl::StrAppend(&text, attempt.resume.empty() ? ", from the initial weights" : ", from ", attempt.resume);
  Tell(job, "attempt_started", text);
}

void Core::SendRendezvous(JobState* job, int rank) {
  const Worker* worker = members_.ByName(job->attempt->ranks[rank].worker);
  if (worker == nullptr) return;
  v1::AttachResponse message;
  *message.mutable_rank_command()->mutable_id() = IdOf(job->id, job->attempt->number, rank);
  message.mutable_rank_command()->set_line(RendezvousLine(*job->attempt));
  Send(*worker, std::move(message));
}

}  // namespace tacc::coordinator
