#include "coordinator/metrics/metrics.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "absl/strings/ascii.h"
#include "coordinator/core/view.h"

namespace tacc::coordinator {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<std::pair<std::string, std::string>>;

class Families {
 public:
  void Add(const std::string& name, const std::string& help, MetricType type, double value, const Labels& labels) {
    auto [it, inserted] = index_.try_emplace(name, families_.size());
    if (inserted) {
      MetricFamily family;
      family.name = name;
      family.help = help;
      family.type = type;
      families_.push_back(std::move(family));
    }
    ClientMetric metric;
    for (const auto& [key, text] : labels) metric.label.push_back({key, text});
    (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    families_[it->second].metric.push_back(std::move(metric));
  }
  void Gauge(const std::string& name, const std::string& help, double value, const Labels& labels) {
    Add(name, help, MetricType::Gauge, value, labels);
  }
  void Counter(const std::string& name, const std::string& help, double value, const Labels& labels) {
    Add(name, help, MetricType::Counter, value, labels);
  }
  std::vector<MetricFamily> Take() { return std::move(families_); }

 private:
  std::vector<MetricFamily> families_;
  std::map<std::string, size_t> index_;
};

// "PHASE_RUNNING" -> "running".
std::string StateName(int phase) {
  return absl::AsciiStrToLower(v1::Phase_Name(static_cast<v1::Phase>(phase)).substr(6));
}

void AddJob(const JobState& job, Families* out) {
  const v1::Job view = ViewJob(job);
  const Labels labels = {{"training_job", view.id()}};
  for (int phase = v1::Phase_MIN + 1; phase <= v1::Phase_MAX; ++phase) {
    out->Gauge("tacc_job_state", "1 for the state that the job is in, 0 for the others.", phase == view.phase() ? 1 : 0,
               {{"training_job", view.id()}, {"state", StateName(phase)}});
  }
  out->Gauge("tacc_job_step", "Updates done.", static_cast<double>(view.step()), labels);
  out->Gauge("tacc_job_max_steps", "Updates wanted.", static_cast<double>(view.max_steps()), labels);
  out->Counter("tacc_job_restarts_total", "Attempts that ended before the job did.", view.restarts_size(), labels);
  out->Counter("tacc_job_skipped_steps_total", "Updates skipped because the gradient norm was not finite.",
               static_cast<double>(view.skipped_steps()), labels);
  out->Gauge("tacc_job_attempt", "Number of the current attempt.", view.attempt(), labels);
  if (view.has_last_step()) {
    const v1::StepMetrics& step = view.last_step();
    out->Gauge("tacc_job_loss", "Training loss of the last step, nats per target token.", step.loss(), labels);
    out->Gauge("tacc_job_gradient_norm", "Global norm of the last step's gradient, before clipping.", step.grad_norm(),
               labels);
    out->Gauge("tacc_job_learning_rate", "Learning rate of the last step.", step.learning_rate(), labels);
    out->Gauge("tacc_job_tokens_per_second", "Tokens per second of the last step, over all ranks.",
               step.tokens_per_second(), labels);
    if (step.has_mfu()) {
      out->Gauge("tacc_job_mfu_ratio",
                 "Model FLOPs utilisation of the last step, 0 to 1: the model's FLOPs over what all devices could do.",
                 step.mfu(), labels);
    }
    if (step.has_expert_overflow()) {
      out->Gauge("tacc_job_expert_overflow_slots",
                 "Slots of tokens, over all layers, that found no place in a buffer for experts in the last step.",
                 static_cast<double>(step.expert_overflow()), labels);
    }
    if (step.has_device_idle_share()) {
      out->Gauge("tacc_job_device_idle_ratio", "Share of the last step in which nothing ran on rank 0's GPU.",
                 step.device_idle_share(), labels);
    }
    if (step.has_loss_scale())
      out->Gauge("tacc_job_loss_scale", "Loss scale after the last step.", step.loss_scale(), labels);
    out->Gauge("tacc_job_step_seconds", "Duration of the last step.", step.seconds(), labels);
    out->Gauge("tacc_job_data_wait_seconds", "Time that the last step waited for data.", step.data_wait_seconds(),
               labels);
    out->Gauge("tacc_job_communication_seconds", "Time that the last step waited for collectives and other stages.",
               step.communication_seconds(), labels);
  }
  if (view.has_last_eval()) {
    out->Gauge("tacc_job_eval_loss", "Loss of the last evaluation on held-out data, nats per target token.",
               view.last_eval().eval_loss(), labels);
  }
  if (view.has_last_checkpoint()) {
    out->Gauge("tacc_job_checkpoint_step", "Step of the last checkpoint.",
               static_cast<double>(view.last_checkpoint().step()), labels);
    out->Gauge("tacc_job_checkpoint_bytes", "Size of the last checkpoint.",
               static_cast<double>(view.last_checkpoint().size_bytes()), labels);
    out->Gauge("tacc_job_checkpoint_stall_seconds", "Time that training stood still for the last checkpoint.",
               view.last_checkpoint().stall_seconds(), labels);
  }
  if (view.has_plan() && view.plan().predicted_step_seconds() > 0) {
    out->Gauge("tacc_job_predicted_step_seconds", "Duration of a step as the planner predicted it.",
               view.plan().predicted_step_seconds(), labels);
  }
  if (const auto total = view.plan().memory_bytes().find("total"); total != view.plan().memory_bytes().end()) {
    out->Gauge("tacc_job_planned_memory_bytes", "Memory of its device that a rank needs, as planned.",
               static_cast<double>(total->second), labels);
  }
  for (const v1::RankView& rank : view.ranks()) {
    const Labels of_rank = {{"training_job", view.id()}, {"rank", std::to_string(rank.rank())}};
    if (rank.arena_bytes() > 0) {
      out->Gauge("tacc_job_arena_bytes", "Size of a rank's memory arena.", static_cast<double>(rank.arena_bytes()),
                 of_rank);
    }
    if (rank.device_memory_used_bytes() > 0) {
      out->Gauge("tacc_job_device_memory_bytes", "GPU memory that a rank's process holds.",
                 static_cast<double>(rank.device_memory_used_bytes()), of_rank);
    }
  }
}

}  // namespace

std::vector<MetricFamily> CollectMetrics(const Core& core, const MetricsInput& input) {
  Families out;
  out.Gauge("tacc_build_info", "1; the label tells the version.", 1, {{"version", input.version}});
  std::map<int, int> jobs;
  for (int phase = v1::Phase_MIN + 1; phase <= v1::Phase_MAX; ++phase) jobs[phase] = 0;
  for (const auto& [id, job] : core.jobs()) ++jobs[job.Phase()];
  for (const auto& [phase, count] : jobs)
    out.Gauge("tacc_jobs", "Jobs by state.", count, {{"state", StateName(phase)}});
  std::map<std::string, int> workers = {{"busy", 0}, {"idle", 0}, {"lost", 0}, {"unusable", 0}};
  const double awake = core.AwakeSeconds(input.now);
  for (const auto& [name, worker] : core.members().workers()) ++workers[ViewWorker(worker, awake).state()];
  for (const auto& [state, count] : workers) out.Gauge("tacc_workers", "Workers by state.", count, {{"state", state}});
  out.Counter("tacc_coordinator_commits_total", "Transactions written to the coordinator's database.", input.commits,
              {});
  out.Counter("tacc_coordinator_commit_seconds_total", "Time spent in them.", input.commit_seconds, {});
  for (const auto& [id, job] : core.jobs()) {
    if (job.ended.has_value() && input.now.wall - job.ended_time > kEndedJobSeconds) continue;
    AddJob(job, &out);
  }
  return out.Take();
}

}  // namespace tacc::coordinator
