#include "coordinator/core/job_state.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::coordinator {
namespace {

// Steps behind the medians that `get` shows.
constexpr size_t kRecentSteps = 100;

absl::Status Misfit(const JobState& job, const std::string& what) {
  return absl::InternalError(absl::StrCat("the log does not fit together: job ", job.id, ": ", what));
}

template <typename T>
T NumberOr(const nlohmann::json& object, const char* key, T fallback) {
  auto it = object.find(key);
  return it != object.end() && it->is_number() ? it->get<T>() : fallback;
}

std::string StringOr(const nlohmann::json& object, const char* key) {
  auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

// The current attempt, when the fact is about it.
AttemptState* Current(JobState* job, int number) {
  if (!job->attempt.has_value() || job->attempt->number != number) return nullptr;
  return &*job->attempt;
}

// The rank of the current attempt, when `attempt` is that one's number and has it; else null.
RankState* RankOf(JobState* job, int attempt, int rank) {
  AttemptState* current = Current(job, attempt);
  if (current == nullptr || rank < 0 || rank >= static_cast<int>(current->ranks.size())) return nullptr;
  return &current->ranks[rank];
}

absl::Status ApplyAttemptStarted(const v1::Fact& fact, JobState* job) {
  const v1::AttemptStarted& started = fact.attempt_started();
  if (job->Active()) return Misfit(*job, "an attempt starts while another runs");
  if (started.placement().empty()) return Misfit(*job, "an attempt without ranks");
  AttemptState attempt;
  attempt.number = started.attempt();
  attempt.resume = started.resume();
  attempt.peak_flops_per_second = started.peak_flops_per_second();
  attempt.best_step_before = started.best_step();
  for (const v1::Placement& placement : started.placement()) {
    RankState rank;
    rank.worker = placement.worker();
    rank.instance = placement.instance();
    rank.advertise = placement.advertise();
    attempt.ranks.push_back(std::move(rank));
  }
  for (const v1::Checkpoint& checkpoint : started.adopted()) {
    job->checkpoints.push_back(checkpoint);
    job->best_step = std::max(job->best_step, checkpoint.step());
  }
  if (job->first_attempt == 0) {
    for (const v1::Checkpoint& checkpoint : started.adopted()) {
      job->step_before = std::max(job->step_before, checkpoint.step());
    }
    job->first_attempt = attempt.number;
    job->started_time = fact.time();
  }
  job->step = 0;
  for (const v1::Checkpoint& checkpoint : job->checkpoints) {
    if (checkpoint.name() == attempt.resume) job->step = checkpoint.step();
  }
  job->attempt = std::move(attempt);
  return absl::OkStatus();
}

absl::Status ApplyAttemptEnded(const v1::Fact& fact, JobState* job) {
  const v1::AttemptEnded& ended = fact.attempt_ended();
  AttemptState* attempt = Current(job, ended.attempt());
  if (attempt == nullptr || attempt->over) return Misfit(*job, "the end of an attempt that does not run");
  attempt->over = true;
  attempt->step = std::max(attempt->step, ended.step());
  job->best_step = std::max(job->best_step, attempt->step);
  job->step = std::max(job->step, attempt->step);
  if (ended.cause().empty()) return absl::OkStatus();
  v1::Restart restart;
  restart.set_attempt(ended.attempt());
  restart.set_time(fact.time());
  restart.set_cause(ended.cause());
  restart.set_step(attempt->step);
  // An outage that lasts is one entry, however often it was tried, but for what counts.
  const bool is_the_same = ended.unavailable() && !ended.counted() && !job->restarts.empty() &&
                           job->restarts.back().cause() == ended.cause();
  if (is_the_same) job->restarts.pop_back();
  job->restarts.push_back(restart);
  if (attempt->step > attempt->best_step_before) {
    job->restarts_without_progress = 0;
    job->counted_before = false;
  }
  if (ended.counted()) {
    if (job->counted_before) ++job->restarts_without_progress;
    job->counted_before = true;
  }
  return absl::OkStatus();
}

absl::Status ApplyRankReady(const v1::RankReady& ready, JobState* job) {
  RankState* rank = RankOf(job, ready.attempt(), ready.rank());
  if (rank == nullptr) return Misfit(*job, "a ready rank of another attempt");
  rank->ready = true;
  rank->resumed_from = ready.resumed_from();
  rank->arena_bytes = ready.arena_bytes();
  rank->device_memory_used_bytes = ready.device_memory_used_bytes();
  rank->load_seconds = ready.load_seconds();
  rank->endpoint = ready.endpoint();
  if (!ready.attention().empty()) job->attention = {ready.attention().begin(), ready.attention().end()};
  if (!ready.products().empty()) job->products = {ready.products().begin(), ready.products().end()};
  job->attempt->step = std::max(job->attempt->step, ready.step());
  job->step = std::max(job->step, ready.step());
  return absl::OkStatus();
}

absl::Status ApplyRankEnded(const v1::RankEnded& ended, JobState* job) {
  RankState* rank = RankOf(job, ended.attempt(), ended.rank());
  if (rank == nullptr) return Misfit(*job, "the end of a rank of another attempt");
  for (const RankState& other : job->attempt->ranks) rank->end_order += other.ended.has_value() ? 1 : 0;
  rank->ended = ended;
  rank->sample.reset();
  return absl::OkStatus();
}

void ApplyCheckpointsDropped(const v1::CheckpointsDropped& dropped, JobState* job) {
  for (const std::string& name : dropped.names()) {
    std::erase_if(job->checkpoints, [&](const v1::Checkpoint& checkpoint) { return checkpoint.name() == name; });
    if (dropped.why() != "damaged") continue;
    ++job->num_damaged;
    if (job->Active() && job->attempt->resume == name) job->attempt->resume_damaged = true;
  }
}

}  // namespace

absl::Status Summary::Parse(const std::string& text, Summary* out) {
  const nlohmann::json json = ParseJson(text);
  if (!json.is_object()) return absl::InvalidArgumentError("summary.json of tacc-plan is not a JSON object");
  v1::PlanSummary plan;
  plan.set_world(NumberOr<int>(json, "world", 0));
  if (plan.world() < 1) return absl::InvalidArgumentError("summary.json of tacc-plan: world must be a positive number");
  if (json.contains("mesh") && json["mesh"].is_object()) {
    for (const auto& [axis, size] : json["mesh"].items()) {
      if (size.is_number()) (*plan.mutable_mesh())[axis] = size.get<int>();
    }
  }
  if (json.contains("axes") && json["axes"].is_array()) {
    for (const nlohmann::json& axis : json["axes"]) {
      if (axis.is_string()) plan.add_axes(axis.get<std::string>());
    }
  }
  out->weights = StringOr(json, "weights");
  plan.set_precision(StringOr(json, "precision"));
  plan.set_residual_dtype(StringOr(json, "residual_dtype"));
  plan.set_per_device_train_batch_size(NumberOr<int>(json, "per_device_train_batch_size", 0));
  plan.set_global_batch_size(NumberOr<int>(json, "global_batch_size", 0));
  plan.set_accumulation(NumberOr<int>(json, "accumulation", 0));
  plan.set_seq_len(NumberOr<int>(json, "seq_len", 0));
  plan.set_max_steps(NumberOr<int64_t>(json, "max_steps", 0));
  plan.set_num_parameters(NumberOr<int64_t>(json, "num_parameters", 0));
  plan.set_num_trained_parameters(NumberOr<int64_t>(json, "num_trained_parameters", plan.num_parameters()));
  plan.set_flops_per_step(NumberOr<double>(json, "flops_per_step", 0));
  plan.set_predicted_step_seconds(NumberOr<double>(json, "predicted_step_seconds", 0));
  plan.set_predicted_tokens_per_second(NumberOr<double>(json, "predicted_tokens_per_second", 0));
  plan.set_predicted_communication_seconds(NumberOr<double>(json, "predicted_wait_seconds", 0));
  if (json.contains("memory") && json["memory"].is_object()) {
    for (const auto& [key, bytes] : json["memory"].items()) {
      std::string kind = key;
      if (kind.size() > 6 && kind.compare(kind.size() - 6, 6, "_bytes") == 0) kind.resize(kind.size() - 6);
      if (bytes.is_number()) (*plan.mutable_memory_bytes())[kind] = bytes.get<int64_t>();
    }
  }
  plan.set_communication_bytes_per_rank(NumberOr<int64_t>(json, "communication_bytes_per_rank", 0));
  plan.set_fingerprint(StringOr(json, "fingerprint"));
  plan.set_peak_source(StringOr(json, "peak_source"));
  if (json.contains("buckets") && json["buckets"].is_array()) {
    for (const nlohmann::json& bucket : json["buckets"]) {
      if (!bucket.is_object()) continue;
      v1::BucketSummary& summary = *plan.add_buckets();
      summary.set_seq_len(NumberOr<int>(bucket, "seq_len", 0));
      summary.set_flops_per_step(NumberOr<double>(bucket, "flops_per_step", 0));
      summary.set_compile_seconds(NumberOr<double>(bucket, "compile_seconds", 0));
    }
  }
  out->plan = std::move(plan);
  out->notes.clear();
  if (json.contains("notes") && json["notes"].is_array()) {
    for (const nlohmann::json& note : json["notes"]) {
      if (note.is_string()) out->notes.push_back(note.get<std::string>());
    }
  }
  return absl::OkStatus();
}

int Summary::NumStages() const {
  const auto pp = plan.mesh().find("pp");
  return pp == plan.mesh().end() ? 1 : std::max(1, pp->second);
}

int Summary::StageOf(int rank) const {
  int stride = 1;
  for (int i = plan.axes_size() - 1; i >= 0; --i) {
    const auto size = plan.mesh().find(plan.axes(i));
    if (size == plan.mesh().end()) continue;
    if (plan.axes(i) == "pp") return rank / stride % std::max(1, size->second);
    stride *= std::max(1, size->second);
  }
  return 0;
}

bool AttemptState::AllReady() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return rank.ready; });
}

bool AttemptState::AllEnded() const {
  return std::all_of(ranks.begin(), ranks.end(), [](const RankState& rank) { return rank.ended.has_value(); });
}

bool AttemptState::Failing() const {
  if (!condemned.empty()) return true;
  return std::any_of(ranks.begin(), ranks.end(), [](const RankState& rank) {
    return rank.ended.has_value() &&
           (rank.ended->end() == v1::RANK_END_FAILED || rank.ended->end() == v1::RANK_END_LOST ||
            rank.ended->end() == v1::RANK_END_KILLED);
  });
}

v1::Phase JobState::Phase() const {
  if (ended.has_value()) return ended->phase();
  if (Active()) {
    if (cancel.has_value()) return v1::PHASE_CANCELLING;
    if (attempt->Failing()) return v1::PHASE_RESTARTING;
    return attempt->AllReady() ? v1::PHASE_RUNNING : v1::PHASE_STARTING;
  }
  if (check.has_value()) return outage.has_value() ? v1::PHASE_WAITING : v1::PHASE_STARTING;
  if (compiling) return v1::PHASE_COMPILING;
  return compiled || !reason.empty() ? v1::PHASE_WAITING : v1::PHASE_SUBMITTED;
}

int JobState::World() const { return compiled ? summary.plan.world() : RequestedWorld(spec); }

std::string JobState::LastCheckpointText() const {
  if (checkpoints.empty()) return "";
  const v1::Checkpoint& last = checkpoints.back();
  // It may be one that was away when this attempt began.
  return absl::StrCat(
      ", last checkpoint ", last.name(),
      last.step() > step ? absl::StrCat(" (of attempt ", last.attempt(), ", which had come further)") : "");
}

int64_t JobState::MaxSteps() const {
  return spec.train().has_max_steps() ? spec.train().max_steps() : summary.plan.max_steps();
}

absl::Status Apply(const v1::Fact& fact, JobState* job) {
  switch (fact.fact_case()) {
    case v1::Fact::kJobAccepted:
      job->id = fact.job();
      job->request_id = fact.job_accepted().request_id();
      job->project = fact.job_accepted().project();
      job->spec = fact.job_accepted().spec();
      job->number = fact.job_accepted().number();
      job->submitted_time = fact.time();
      return absl::OkStatus();
    case v1::Fact::kJobCompiled:
      job->compiled = true;
      job->compile = fact.job_compiled();
      return Summary::Parse(job->compile.summary(), &job->summary);
    case v1::Fact::kAttemptStarted:
      return ApplyAttemptStarted(fact, job);
    case v1::Fact::kRankListening: {
      AttemptState* attempt = Current(job, fact.rank_listening().attempt());
      if (attempt == nullptr) return Misfit(*job, "a listening rank of another attempt");
      attempt->host = fact.rank_listening().host();
      attempt->port = fact.rank_listening().port();
      attempt->file = fact.rank_listening().file();
      attempt->secret = fact.rank_listening().secret();
      return absl::OkStatus();
    }
    case v1::Fact::kRankReady:
      return ApplyRankReady(fact.rank_ready(), job);
    case v1::Fact::kRankEnded:
      return ApplyRankEnded(fact.rank_ended(), job);
    case v1::Fact::kAttemptCondemned: {
      AttemptState* attempt = Current(job, fact.attempt_condemned().attempt());
      if (attempt == nullptr) return Misfit(*job, "another attempt is condemned");
      attempt->condemned = fact.attempt_condemned().cause();
      return absl::OkStatus();
    }
    case v1::Fact::kAttemptEnded:
      return ApplyAttemptEnded(fact, job);
    case v1::Fact::kCheckpointCommitted:
      job->checkpoints.push_back(fact.checkpoint_committed().checkpoint());
      job->step = std::max(job->step, job->checkpoints.back().step());
      job->checkpoint_failure.reset();
      return absl::OkStatus();
    case v1::Fact::kCheckpointFailed:
      job->checkpoint_failure.emplace();
      job->checkpoint_failure->set_since_time(fact.time());
      job->checkpoint_failure->set_message(fact.checkpoint_failed().message());
      return absl::OkStatus();
    case v1::Fact::kCheckpointsDropped:
      ApplyCheckpointsDropped(fact.checkpoints_dropped(), job);
      return absl::OkStatus();
    case v1::Fact::kCancelRequested:
      job->cancel = fact.cancel_requested().mode();
      return absl::OkStatus();
    case v1::Fact::kModelExported:
      job->exported_path = fact.model_exported().path();
      return absl::OkStatus();
    case v1::Fact::kJobEnded:
      job->ended = fact.job_ended();
      job->ended_time = fact.time();
      // The end of the last attempt was the job's, and no restart.
      if (!job->restarts.empty() && job->attempt.has_value() &&
          job->restarts.back().attempt() == job->attempt->number) {
        job->restarts.pop_back();
      }
      return absl::OkStatus();
    case v1::Fact::FACT_NOT_SET:
      break;
  }
  return Misfit(*job, "a fact of a kind that this version does not know");
}

void NoteStep(const v1::StepMetrics& step, JobState* job) {
  job->best_step = std::max(job->best_step, step.step());
  job->skipped_steps += step.skipped();
  job->last_step = step;
  if (job->attempt.has_value() && job->attempt->number == step.attempt()) {
    job->attempt->step = std::max(job->attempt->step, step.step());
    job->step = std::max(job->step, step.step());
    job->attempt->recent.push_back(step);
    if (job->attempt->recent.size() > kRecentSteps) job->attempt->recent.pop_front();
  }
}

void NoteEval(const v1::EvalMetrics& eval, JobState* job) { job->last_eval = eval; }

}  // namespace tacc::coordinator
