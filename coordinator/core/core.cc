#include "coordinator/core/core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/core/resume.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::coordinator {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kMaxShownBytes = 128;  // Of a name that is none of a job's.
constexpr size_t kMaxOpenJobs = 10000;
// The most of the time since the last tick that counts: as long as two ticks.
constexpr double kLongestTickSeconds = 1;
// Least and most time between looks at files that are away.
constexpr double kMinDelaySeconds = 1;
constexpr double kMaxDelaySeconds = 30;

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

// The part of a device that decides whether a job compiles for it.
std::string DeviceKey(const v1::DeviceProfile& device) {
  return absl::StrCat(device.kind(), "/", device.threads(), "/", device.memory_bytes(), "/",
                      device.devices_per_machine());
}

// NAME-N, N larger than `gone` and than of all jobs of that name that are known.
std::string NewId(const std::map<std::string, JobState>& jobs, const std::string& name, int64_t gone) {
  const std::string prefix = absl::StrCat(name, "-");
  int64_t largest = gone;
  for (auto it = jobs.lower_bound(prefix); it != jobs.end() && absl::StartsWith(it->first, prefix); ++it) {
    if (it->second.spec.name() == name) largest = std::max(largest, IdNumber(it->first));
  }
  return absl::StrCat(prefix, largest + 1);
}

std::string CheckpointDir(const JobState& job) { return job.spec.checkpoint().dir(); }

}  // namespace

int64_t IdNumber(const std::string& id) {
  int64_t number = 0;
  (void)absl::SimpleAtoi(id.substr(id.rfind('-') + 1), &number);
  return number;
}

Core::Core(Options options, DescribeInstruction describe)
    : options_(std::move(options)),
      describe_(std::move(describe)),
      members_(options_.lease_seconds, options_.version),
      clock_(kLongestTickSeconds),
      gone_number_(options_.last_id_number) {}

// ---- Replay.

absl::Status Core::Replay(const v1::Fact& fact) {
  if (fact.has_job_accepted()) {
    if (jobs_.count(fact.job()) != 0)
      return absl::InternalError(absl::StrCat("the log accepts job ", fact.job(), " twice"));
    const v1::JobAccepted& accepted = fact.job_accepted();
    by_request_[{accepted.project(), accepted.request_id()}] = fact.job();
    last_number_ = std::max(last_number_, accepted.number());
    queue_[accepted.number()] = fact.job();
    return Apply(fact, &jobs_[fact.job()]);
  }
  auto job = jobs_.find(fact.job());
  if (job == jobs_.end())
    return absl::InternalError(absl::StrCat("the log names job ", fact.job(), ", which it never accepted"));
  absl::Status status = Apply(fact, &job->second);
  if (fact.has_job_ended()) {
    queue_.erase(job->second.number);
    ended_.push_back(fact.job());
  }
  return status;
}

void Core::ReplaySequence(const v1::RankId& id, uint64_t sequence) {
  auto job = jobs_.find(id.job());
  if (job == jobs_.end() || !job->second.attempt.has_value()) return;
  AttemptState& attempt = *job->second.attempt;
  if (attempt.number != id.attempt() || id.rank() < 0 || id.rank() >= static_cast<int>(attempt.ranks.size())) return;
  attempt.ranks[id.rank()].stored_sequence = sequence;
  attempt.ranks[id.rank()].seen_sequence = sequence;
}

void Core::ReplayStep(const std::string& job, const v1::StepMetrics& step) {
  auto it = jobs_.find(job);
  if (it != jobs_.end()) NoteStep(step, &it->second);
}

void Core::ReplayEval(const std::string& job, const v1::EvalMetrics& eval) {
  auto it = jobs_.find(job);
  if (it != jobs_.end()) NoteEval(eval, &it->second);
}

void Core::Resume(Time now) {
  const double awake = clock_.Tick(now.steady);
  for (const auto& [number, id] : queue_) {
    JobState& job = jobs_[id];
    if (!job.Active()) continue;
    job.running_told = job.attempt->AllReady();
    for (const RankState& rank : job.attempt->ranks) {
      if (!rank.ended.has_value()) members_.Expect(awake, rank.worker)->reserved = id;
    }
  }
}

// ---- Inputs.

Decisions Core::Handle(Time now, const Input& input) {
  const bool is_tick = std::holds_alternative<Tick>(input);
  now_ = {is_tick ? clock_.Tick(now.steady) : clock_.At(now.steady), now.wall};
  out_.clear();
  std::visit(Overloaded{
                 [this](const Tick&) { OnTick(); },
                 [this](const SubmitJob& submit) { OnSubmit(submit); },
                 [this](const CancelJob& cancel) { OnCancel(cancel); },
                 [this](const CompileDone& done) { OnCompileDone(done); },
                 [this](const CompileFailed& failed) { OnCompileFailed(failed); },
                 [this](const ProgramUnread& unread) { OnProgramUnread(unread); },
                 [this](const WorkerAttached& attached) { OnAttached(attached); },
                 [this](const WorkerDetached& detached) { OnDetached(detached.session); },
                 [this](const WorkerMessage& message) { OnMessage(message); },
             },
             input);
  Schedule();
  ForgetEndedJobs();
  return std::move(out_);
}

void Core::OnSubmit(const SubmitJob& submit) {
  auto reply = [&](absl::Status status, const std::string& job, bool existed) {
    out_.push_back(Reply{submit.tag, std::move(status), job, existed});
  };
  if (auto it = by_request_.find({submit.scope.project, submit.request_id}); it != by_request_.end()) {
    const JobState& job = jobs_[it->second];
    if (google::protobuf::util::MessageDifferencer::Equals(job.spec, submit.spec))
      return reply(absl::OkStatus(), job.id, true);
    return reply(absl::AlreadyExistsError(absl::StrCat("request id ", submit.request_id, " belongs to job ", job.id,
                                                       ", which is not the same job")),
                 job.id, true);
  }
  if (absl::Status status = MayAccept(submit); !status.ok()) return reply(std::move(status), "", false);
  v1::Fact fact;
  fact.set_job(NewId(jobs_, submit.spec.name(), gone_number_));
  fact.mutable_job_accepted()->set_request_id(submit.request_id);
  *fact.mutable_job_accepted()->mutable_spec() = submit.spec;
  fact.mutable_job_accepted()->set_number(++last_number_);
  fact.mutable_job_accepted()->set_project(submit.scope.project);
  JobState* job = &jobs_[fact.job()];
  by_request_[{submit.scope.project, submit.request_id}] = fact.job();
  queue_[last_number_] = fact.job();
  Log(job, std::move(fact));
  Tell(*job, "accepted", absl::StrCat("accepted as ", job->id));
  reply(absl::OkStatus(), job->id, false);
}

absl::Status Core::MayAccept(const SubmitJob& submit) const {
  if (!submit.scope.all && submit.scope.project.empty())
    return absl::PermissionDeniedError("who is of no project submits no job");
  if (submit.request_id.size() > kMaxRequestIdBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("request_id has ", submit.request_id.size(), " bytes, at most ", kMaxRequestIdBytes));
  }
  // A coordinator trusts no client.
  std::string wrong;
  for (const JobDiagnostic& diagnostic : ValidateJobSpec(submit.spec)) {
    absl::StrAppend(&wrong, wrong.empty() ? "" : "\n", diagnostic.message);
  }
  if (!wrong.empty()) return absl::InvalidArgumentError(wrong);
  if (queue_.size() >= kMaxOpenJobs)
    return absl::ResourceExhaustedError(absl::StrCat(queue_.size(), " jobs have not ended, which is the limit"));
  for (const auto& [number, id] : queue_) {
    const JobState& job = jobs_.at(id);
    if (CheckpointDir(job) != submit.spec.checkpoint().dir()) continue;
    const char* waits = job.spec.data().has_client()
                            ? "; it waits for its client (data.client.wait_seconds), also for one whose process is gone"
                            : "";
    return absl::FailedPreconditionError(
        absl::StrCat("checkpoint.dir ", submit.spec.checkpoint().dir(), " is used by ",
                     submit.scope.Has(job.project) ? absl::StrCat("job ", id) : "a job of another project",
                     ", which has not ended; cancel it or give another folder", waits));
  }
  return absl::OkStatus();
}

void Core::OnCancel(const CancelJob& cancel) {
  auto reply = [&](absl::Status status, const std::string& job) {
    out_.push_back(Reply{cancel.tag, std::move(status), job, true});
  };
  const JobState* found = Find(cancel.job, cancel.scope);
  if (found == nullptr)
    return reply(absl::NotFoundError(absl::StrCat("no job ", cancel.job.substr(0, kMaxShownBytes))), "");
  JobState* job = &jobs_.at(found->id);
  if (job->ended.has_value()) return reply(absl::OkStatus(), job->id);
  const v1::CancelMode mode =
      cancel.mode == v1::CANCEL_MODE_CHECKPOINT ? v1::CANCEL_MODE_CHECKPOINT : v1::CANCEL_MODE_NOW;
  Cancel(job, mode, "cancelled");
  reply(absl::OkStatus(), job->id);
}

void Core::Cancel(JobState* job, v1::CancelMode mode, const std::string& why) {
  // A second time it may only be harsher.
  if (job->cancel.has_value() && (*job->cancel == v1::CANCEL_MODE_NOW || mode == v1::CANCEL_MODE_CHECKPOINT)) return;
  v1::Fact fact;
  fact.mutable_cancel_requested()->set_mode(mode);
  Log(job, std::move(fact));
  const bool saves = mode == v1::CANCEL_MODE_CHECKPOINT && job->Active() && !job->attempt->Failing();
  Tell(*job, "cancelling", absl::StrCat(why, saves ? ": the ranks write a checkpoint and stop" : ""));
  if (job->Active()) return Advance(job);
  if (job->compiling) out_.push_back(StopCompile{job->id});
  job->compiling = false;
  AbandonPathCheck(job);
  std::string reason = "cancelled before it ran";
  if (job->attempt.has_value())
    reason = absl::StrCat("cancelled at step ", job->step, " while it waited", job->LastCheckpointText());
  EndJob(job, v1::PHASE_CANCELLED, reason, v1::FAILURE_CODE_UNSPECIFIED, {});
}

void Core::OnCompileDone(const CompileDone& done) {
  JobState* job = FindOpen(done.job);
  if (job == nullptr || !job->compiling) return;
  // Compiled again, for what it has trained so far.
  if (!job->checkpoints.empty()) {
    const std::string difference = IdentityDifference(done.identity, job->compile.identity());
    if (!difference.empty()) {
      job->compiling = false;
      // No fault of the workers': what it reads may be put back.
      return WaitOut(job, absl::StrCat(job->program_lost ? "its program is lost, and does not compile: " : "",
                                       "it is no longer what it was when it began: ", difference));
    }
  }
  job->compiling = false;
  Summary summary;
  if (absl::Status status = Summary::Parse(done.summary, &summary); !status.ok()) {
    return EndJob(job, v1::PHASE_FAILED, std::string(status.message()), v1::FAILURE_CODE_COMPILE, {});
  }
  v1::Fact fact;
  v1::JobCompiled* compiled = fact.mutable_job_compiled();
  compiled->set_summary(done.summary);
  compiled->set_data(done.data);
  compiled->set_identity(done.identity);
  compiled->set_seconds(done.seconds);
  compiled->set_directory(done.directory);
  compiled->set_version(options_.version);
  for (const std::string& fingerprint : done.program_fingerprints) compiled->add_program_fingerprints(fingerprint);
  *compiled->mutable_device() = job->compiling_for;
  Log(job, std::move(fact));
  job->program_lost = false;
  if (job->outage.has_value()) job->outage->reason.clear();
  const v1::PlanSummary& plan = job->summary.plan;
  Tell(*job, "compiled",
       absl::StrCat("compiled for ", plan.world(), plan.world() == 1 ? " worker" : " workers", " in ", plan.precision(),
                    ", ", plan.num_parameters(), " parameters",
                    plan.num_trained_parameters() < plan.num_parameters()
                        ? absl::StrCat(", of which ", plan.num_trained_parameters(), " are trained")
                        : ""));
  for (const v1::BucketSummary& bucket : plan.buckets()) {
    Tell(*job, "compiled",
         absl::StrFormat("compiled for length %d in %.1f s", bucket.seq_len(), bucket.compile_seconds()));
  }
  for (const std::string& note : job->summary.notes) Tell(*job, "warning", note);
}

void Core::OnCompileFailed(const CompileFailed& failed) {
  JobState* job = FindOpen(failed.job);
  if (job == nullptr || !job->compiling) return;
  job->compiling = false;
  if (job->program_lost)
    return WaitOut(job, absl::StrCat("its program is lost, and does not compile: ", failed.message));
  if (job->compiled) {
    // It has run or could run elsewhere: workers that it does not fit on do not end it.
    job->refused[DeviceKey(job->compiling_for)] = failed.message;
    Tell(*job, "warning", absl::StrCat("does not compile for the free workers: ", failed.message));
    return;
  }
  EndJob(job, v1::PHASE_FAILED, failed.message, failed.code, {});
}

void Core::EndJob(JobState* job, v1::Phase phase, const std::string& reason, v1::FailureCode code,
                  const std::vector<std::string>& log_lines) {
  v1::Fact fact;
  v1::JobEnded* ended = fact.mutable_job_ended();
  ended->set_phase(phase);
  ended->set_reason(reason);
  ended->set_failure_code(code);
  for (const std::string& line : log_lines) ended->add_last_log_lines(line);
  Log(job, std::move(fact));
  AskForReport(job);
  LeaveFolder(*job);
  queue_.erase(job->number);
  ended_.push_back(job->id);
  Release(job->id);
  job->reason.clear();
  job->check.reset();
  const char* verb = phase == v1::PHASE_FINISHED ? "finished" : phase == v1::PHASE_CANCELLED ? "cancelled" : "failed";
  Tell(*job, "ended", absl::StrCat(verb, ": ", reason));
}

// ---- Scheduling.

void Core::SetWaiting(JobState* job, const std::string& reason) {
  if (job->reason == reason) return;
  job->reason = reason;
  Tell(*job, "waiting", reason);
}

void Core::WaitOut(JobState* job, const std::string& what) {
  if (!job->outage.has_value()) job->outage.emplace();
  Outage& outage = *job->outage;
  outage.delay_seconds = std::clamp(2 * outage.delay_seconds, kMinDelaySeconds, kMaxDelaySeconds);
  outage.next_look = now_.steady + outage.delay_seconds;
  outage.reason = absl::StrCat(what, "; it waits and tries again");
  SetWaiting(job, outage.reason);
}

void Core::ScheduleCompiles() {
  for (const auto& [number, id] : queue_) {
    JobState* job = &jobs_[id];
    if (job->compiled || job->compiling) continue;
    const int world = job->World();
    const auto device = DeviceToCompileFor(members_, world);
    if (!device.has_value()) {
      SetWaiting(job, NeedsWorkers(members_, world));
      continue;
    }
    job->reason.clear();
    job->compiling = true;
    job->compiling_for = *device;
    Tell(*job, "compiling", "compiling");
    out_.push_back(StartCompile{job->id, world, *device});
  }
}

void Core::CompileAgain(JobState* job, const v1::DeviceProfile& device, const std::string& why) {
  job->compiling = true;
  job->compiling_for = device;
  Tell(*job, "compiling", absl::StrCat("compiling again: ", why));
  StartCompile start{job->id, job->World(), device, "", ""};
  // Other workers do not change the types of a job that has run.
  if (job->HasRun()) {
    start.precision = job->summary.plan.precision();
    start.residual_dtype = job->summary.plan.residual_dtype();
  }
  out_.push_back(std::move(start));
}

void Core::Schedule() {
  ScheduleCompiles();
  // First come, first served: a job that waits for workers holds up those behind it, so that a large job is not starved
  // by small ones.
  std::string ahead;
  std::vector<std::string> ids;
  for (const auto& [number, id] : queue_) ids.push_back(id);
  for (const std::string& id : ids) {
    JobState* job = &jobs_[id];
    if (!job->compiled || job->compiling || job->Active() || job->check.has_value()) continue;
    // It holds up nobody: what it waits for is no worker.
    if (job->outage.has_value() && now_.steady < job->outage->next_look) continue;
    if (!ahead.empty()) {
      SetWaiting(job, absl::StrCat("behind ", ahead, ", which waits for workers"));
      continue;
    }
    if (job->program_lost) {
      CompileAgain(job, job->compile.device(), "what was compiled is lost");
      continue;
    }
    Choice choice = Place(members_, *job);
    if (!choice.workers.empty()) {
      if (!job->outage.has_value()) job->reason.clear();
      StartPathCheck(job, choice.workers);
    } else if (choice.recompile_for.has_value() && job->refused.count(DeviceKey(*choice.recompile_for)) != 0) {
      SetWaiting(job, absl::StrCat("needs other workers than those that are free: ",
                                   job->refused[DeviceKey(*choice.recompile_for)]));
      ahead = id;
    } else if (choice.recompile_for.has_value()) {
      job->reason.clear();
      CompileAgain(job, *choice.recompile_for,
                   job->compile.version() == options_.version
                       ? "the free workers are not of the kind that it was compiled for"
                       : "another version of tacc compiled it");
      ahead = id;
    } else {
      SetWaiting(job, choice.reason);
      ahead = id;
    }
  }
}

// ---- Output.

void Core::Log(JobState* job, v1::Fact fact) {
  fact.set_time(now_.wall);
  if (fact.job().empty()) fact.set_job(job->id);
  const absl::Status status = Apply(fact, job);
  if (!status.ok()) {
    // A decision that does not fit the state is a bug of ours: it must not reach the log, where it would stop every
    // later start.
    Tell(*job, "warning", std::string(status.message()));
    return;
  }
  out_.push_back(LogFact{std::move(fact)});
}

void Core::Tell(const JobState& job, const std::string& type, const std::string& message) {
  StoreEvent store;
  store.job = job.id;
  store.event.set_time(now_.wall);
  store.event.set_type(type);
  store.event.set_message(message);
  store.event.set_phase(job.Phase());
  if (job.attempt.has_value()) {
    store.event.set_attempt(job.attempt->number);
    store.event.set_step(job.attempt->step);
  }
  out_.push_back(std::move(store));
}

void Core::Send(const Worker& worker, v1::AttachResponse message) {
  if (worker.session != 0) out_.push_back(SendToWorker{worker.session, std::move(message)});
}

void Core::Release(const std::string& job) {
  for (auto& [name, worker] : members_.workers()) {
    if (worker.reserved == job) worker.reserved.clear();
  }
}

void Core::ForgetEndedJobs() {
  while (ended_.size() > options_.max_ended_jobs) {
    auto job = jobs_.find(ended_.front());
    by_request_.erase({job->second.project, job->second.request_id});
    gone_number_ = std::max(gone_number_, IdNumber(job->first));
    out_.push_back(ForgetJob{job->first});
    jobs_.erase(job);
    ended_.pop_front();
  }
}

// ---- Look-ups.

const JobState* Core::Find(const std::string& id_or_name, const JobScope& scope) const {
  auto it = jobs_.find(id_or_name);
  if (it != jobs_.end() && scope.Has(it->second.project)) return &it->second;
  const JobState* newest = nullptr;
  for (const auto& [id, job] : jobs_) {
    if (job.spec.name() != id_or_name || !scope.Has(job.project)) continue;
    if (newest == nullptr || job.number > newest->number) newest = &job;
  }
  return newest;
}

JobState* Core::FindOpen(const std::string& id) {
  auto it = jobs_.find(id);
  return it == jobs_.end() || it->second.ended.has_value() ? nullptr : &it->second;
}

RankState* Core::FindRank(const Worker& worker, const v1::RankId& id, JobState** job) {
  JobState* found = FindOpen(id.job());
  if (found == nullptr || !found->Active() || found->attempt->number != id.attempt()) return nullptr;
  if (id.rank() < 0 || id.rank() >= static_cast<int>(found->attempt->ranks.size())) return nullptr;
  RankState& rank = found->attempt->ranks[id.rank()];
  if (rank.worker != worker.name) return nullptr;
  *job = found;
  return &rank;
}

}  // namespace tacc::coordinator
