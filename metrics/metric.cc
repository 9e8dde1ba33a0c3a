#include "metrics/metric.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace tacc::metrics {
namespace {

constexpr Metric kMetrics[] = {
    {"tacc_build_info", Scope::kBuild, "", "1; the label tells the version."},
    {"tacc_jobs", Scope::kState, "", "Jobs by state."},
    {"tacc_workers", Scope::kState, "", "Workers by state."},
    {"tacc_coordinator_commits_total", Scope::kCoordinator, "", "Transactions written to the coordinator's database."},
    {"tacc_coordinator_commit_seconds_total", Scope::kCoordinator, "", "Time spent in them."},
    {"tacc_coordinator_upload_received_bytes_total", Scope::kCoordinator, "",
     "Bytes of files that clients have uploaded."},
    {"tacc_coordinator_upload_sent_bytes_total", Scope::kCoordinator, "",
     "Bytes of uploads that daemons have fetched, each once for its machine."},

    {"tacc_job_state", Scope::kJobState, "", "1 for the state that the job is in, 0 for the others."},
    {"tacc_job_step", Scope::kJob, "step", "Updates done."},
    {"tacc_job_max_steps", Scope::kJob, "max_steps", "Updates wanted."},
    {"tacc_job_restarts_total", Scope::kJob, "restarts", "Attempts that ended before the job did."},
    {"tacc_job_skipped_steps_total", Scope::kJob, "skipped_steps",
     "Updates skipped because the gradient norm was not finite."},
    {"tacc_job_attempt", Scope::kJob, "attempt", "Number of the current attempt."},
    {"tacc_job_loss", Scope::kJob, "last_step.loss", "Training loss of the last step, nats per target token."},
    {"tacc_job_gradient_norm", Scope::kJob, "last_step.grad_norm",
     "Global norm of the last step's gradient, before clipping."},
    {"tacc_job_learning_rate", Scope::kJob, "last_step.learning_rate", "Learning rate of the last step."},
    {"tacc_job_tokens_per_second", Scope::kJob, "last_step.tokens_per_second",
     "Tokens per second of the last step, over all ranks."},
    {"tacc_job_mfu_ratio", Scope::kJob, "last_step.mfu",
     "Model FLOPs utilisation of the last step, 0 to 1: the model's FLOPs over what all devices could do."},
    {"tacc_job_step_seconds", Scope::kJob, "last_step.seconds", "Duration of the last step."},
    {"tacc_job_data_wait_seconds", Scope::kJob, "last_step.data_wait_seconds",
     "Time that the last step waited for data."},
    {"tacc_job_communication_seconds", Scope::kJob, "last_step.communication_seconds",
     "Time that the last step waited for collectives and other stages."},
    {"tacc_job_eval_loss", Scope::kJob, "last_eval.eval_loss",
     "Loss of the last evaluation on held-out data, nats per target token."},
    {"tacc_job_checkpoint_step", Scope::kJob, "last_checkpoint.step", "Step of the last checkpoint."},
    {"tacc_job_checkpoint_bytes", Scope::kJob, "last_checkpoint.size_bytes", "Size of the last checkpoint."},
    {"tacc_job_checkpoint_seconds", Scope::kJob, "last_checkpoint.seconds",
     "Time that writing the last checkpoint took."},
    {"tacc_job_checkpoint_stall_seconds", Scope::kJob, "last_checkpoint.stall_seconds",
     "Time that training stood still for the last checkpoint."},
    {"tacc_job_predicted_step_seconds", Scope::kJob, "plan.predicted_step_seconds?",
     "Duration of a step as the planner predicted it."},
    {"tacc_job_planned_memory_bytes", Scope::kJob, "plan.memory_bytes.total",
     "Memory of its device that a rank needs, as planned."},
    {"tacc_job_arena_bytes", Scope::kJobRank, "arena_bytes?", "Size of a rank's memory arena."},
    {"tacc_job_expert_overflow_slots", Scope::kJob, "last_step.expert_overflow",
     "Slots of tokens, over all layers, that found no place in a buffer for experts in the last step.", Of::kExperts},
    {"tacc_job_device_idle_ratio", Scope::kJob, "last_step.device_idle_share",
     "Share of the last step in which nothing ran on rank 0's GPU.", Of::kGpus},
    {"tacc_job_device_memory_bytes", Scope::kJobRank, "device_memory_used_bytes?",
     "GPU memory that a rank's process holds.", Of::kGpus},
    {"tacc_job_loss_scale", Scope::kJob, "last_step.loss_scale", "Loss scale after the last step.", Of::kFloat16},

    {"tacc_worker_attached", Scope::kWorker, "", "1 while registered with the coordinator."},
    {"tacc_worker_threads", Scope::kWorker, "", "Threads that a rank here gets."},
    {"tacc_worker_memory_bytes", Scope::kWorker, "", "Memory that a rank here may use."},
    {"tacc_worker_device_usable", Scope::kWorker, "", "1 while ranks can run on the device."},
    {"tacc_worker_held_report_bytes", Scope::kWorker, "",
     "Reports of ranks that the coordinator has not acknowledged."},
    {"tacc_worker_dropped_reports_total", Scope::kWorker, "",
     "Log lines and step metrics dropped because too many were held."},
    {"tacc_worker_ranks_started_total", Scope::kWorker, "", "Rank processes started."},
    {"tacc_worker_rank_running", Scope::kWorker, "", "1 while a rank process runs here."},

    {"tacc_rank_step", Scope::kRank, "", "Updates done, as the rank's status block says."},
    {"tacc_rank_still_seconds", Scope::kRank, "", "How long the rank has been in the same instruction."},
    {"tacc_rank_peak_memory_bytes", Scope::kRank, "", "Most memory that the rank's process has had resident."},
    {"tacc_rank_loss", Scope::kRank, "step.loss", "Training loss of the last step, nats per target token."},
    {"tacc_rank_eval_loss", Scope::kRank, "eval.eval_loss",
     "Loss of the last evaluation on held-out data, nats per target token."},
    {"tacc_rank_gradient_norm", Scope::kRank, "step.grad_norm",
     "Global norm of the last step's gradient, before clipping."},
    {"tacc_rank_learning_rate", Scope::kRank, "step.learning_rate", "Learning rate of the last step."},
    {"tacc_rank_step_seconds", Scope::kRank, "step.seconds", "Duration of the last step."},
    {"tacc_rank_data_wait_seconds", Scope::kRank, "step.data_wait_seconds", "Time that the last step waited for data."},
    {"tacc_rank_communication_seconds", Scope::kRank, "step.communication_seconds",
     "Time that the last step waited for collectives and other stages."},
    {"tacc_rank_tokens_per_second", Scope::kRank, "step.tokens_per_second",
     "Tokens per second of the last step, over all ranks."},
    {"tacc_rank_arena_bytes", Scope::kRank, "ready.arena_bytes", "Size of the rank's memory arena."},
    {"tacc_rank_device_idle_ratio", Scope::kRank, "step.device_idle_share",
     "Share of the last step in which nothing ran on the rank's GPU.", Of::kGpus},
    {"tacc_rank_device_memory_bytes", Scope::kRank, "ready.device_memory_used_bytes|step.device_memory_used_bytes",
     "GPU memory that the rank's process holds.", Of::kGpus},
};

bool IsOfWorker(Scope scope) { return scope == Scope::kWorker || scope == Scope::kRank; }

// Whether `heading` of the page tells of `metric`.
bool Tells(absl::string_view heading, const Metric& metric) {
  switch (metric.of) {
    case Of::kExperts:
      return absl::StrContains(heading, "`dist.ep`");
    case Of::kGpus:
      return heading == "Of ranks on GPUs";
    case Of::kFloat16:
      return absl::StrContains(heading, "`compute.fp16`");
    case Of::kAll:
      break;
  }
  if (heading == "Worker") return IsOfWorker(metric.scope) || metric.scope == Scope::kBuild;
  return heading == "Coordinator" && !IsOfWorker(metric.scope);
}

}  // namespace

absl::Span<const Metric> AllMetrics() { return kMetrics; }

absl::Span<const char* const> LabelsOf(Scope scope) {
  static constexpr const char *kVersion[] = {"version"}, *kStates[] = {"state"}, *kJobs[] = {"training_job"},
                              *kJobStates[] = {"training_job", "state"}, *kJobRanks[] = {"training_job", "rank"},
                              *kWorkers[] = {"worker"}, *kRanks[] = {"worker", "training_job", "rank"};
  switch (scope) {
    case Scope::kBuild:
      return kVersion;
    case Scope::kCoordinator:
      return {};
    case Scope::kState:
      return kStates;
    case Scope::kJob:
      return kJobs;
    case Scope::kJobState:
      return kJobStates;
    case Scope::kJobRank:
      return kJobRanks;
    case Scope::kWorker:
      return kWorkers;
    case Scope::kRank:
      return kRanks;
  }
  return {};
}

void Families::Add(const Metric& metric, double value, const std::vector<std::string>& labels) {
  prometheus::MetricFamily& family = families_[&metric];
  family.name = metric.name;
  family.help = metric.help;
  family.type = metric.is_counter() ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge;
  prometheus::ClientMetric& series = family.metric.emplace_back();
  const absl::Span<const char* const> names = LabelsOf(metric.scope);
  for (size_t i = 0; i < names.size(); ++i) series.label.push_back({names[i], labels.at(i)});
  (metric.is_counter() ? series.counter.value : series.gauge.value) = value;
}

void Families::Add(absl::string_view name, double value, const std::vector<std::string>& labels) {
  const auto* const metric =
      std::find_if(std::begin(kMetrics), std::end(kMetrics), [&](const Metric& known) { return known.name == name; });
  if (metric == std::end(kMetrics)) {
    std::fprintf(stderr, "metric %s is not declared in metrics/metric.cc\n", std::string(name).c_str());
    std::abort();
  }
  Add(*metric, value, labels);
}

std::vector<prometheus::MetricFamily> Families::Take() {
  std::vector<prometheus::MetricFamily> taken;
  for (auto& [metric, family] : families_) taken.push_back(std::move(family));
  families_.clear();
  return taken;
}

std::string WithTables(const std::string& page) {
  std::string out, heading;
  for (const absl::string_view line : absl::StrSplit(page, '\n')) {
    if (absl::StartsWith(line, "| `tacc_")) continue;
    absl::StrAppend(&out, out.empty() ? "" : "\n", line);
    if (absl::StartsWith(line, "## ")) heading = std::string(line.substr(3));
    if (!absl::StartsWith(line, "| ---")) continue;
    for (const Metric& metric : kMetrics) {
      if (!Tells(heading, metric)) continue;
      absl::StrAppend(&out, "\n| `", metric.name, "` | ", metric.is_counter() ? "counter" : "gauge", " | ",
                      absl::StrJoin(LabelsOf(metric.scope), ", "), " | ", metric.help, " |");
    }
  }
  return out;
}

}  // namespace tacc::metrics
