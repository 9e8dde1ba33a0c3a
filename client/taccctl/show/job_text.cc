#include "client/taccctl/show/job_text.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/taccctl/show/table.h"
#include "client/taccctl/show/units.h"
#include "proto/tacc/v1/validate_job.h"

namespace tacc::client {
namespace {

using Fields = std::vector<std::pair<std::string, std::string>>;

std::string StepsText(const v1::Job& job) {
  std::string text = StepsDone(job);
  if (job.max_steps() == 0 || job.step() > job.max_steps()) return text;
  absl::StrAppend(&text, " (", FormatPercent(job.percent() / 100), ")");
  if (job.has_eta_seconds()) absl::StrAppend(&text, ", ETA ", FormatDuration(job.eta_seconds()));
  return text;
}

std::string MetricsText(const v1::StepMetrics& step) {
  std::string text =
      absl::StrCat("step ", step.step(), ": loss ", FormatNumber(step.loss(), 5), ", grad_norm ",
                   FormatNumber(step.grad_norm(), 4), ", learning_rate ", FormatNumber(step.learning_rate(), 4), ", ",
                   FormatCount(step.tokens_per_second()), " tokens/s");
  if (step.has_mfu()) absl::StrAppend(&text, ", MFU ", FormatPercent(step.mfu()));
  return text;
}

std::string LayoutText(const v1::PlanSummary& plan) {
  std::vector<std::string> axes;
  for (const std::string& axis : plan.axes()) {
    const auto size = plan.mesh().find(axis);
    if (size != plan.mesh().end()) axes.push_back(absl::StrCat(axis, "=", size->second));
  }
  return absl::StrCat(
      plan.world(), " ranks (", absl::StrJoin(axes, " "), "), ", plan.precision(), ", batch ", plan.global_batch_size(),
      " = ", plan.per_device_train_batch_size(), " a rank, ", plan.accumulation(), " times, x ", plan.seq_len(),
      " tokens; ", FormatCount(static_cast<double>(plan.num_parameters())), " parameters",
      plan.num_trained_parameters() < plan.num_parameters()
          ? absl::StrCat(", ", FormatCount(static_cast<double>(plan.num_trained_parameters())), " of them trained")
          : "");
}

// Whether this attempt has taken a copy of the states: for its first checkpoint that is written while training goes on.
bool HasCopied(const v1::Job& job) {
  return std::any_of(job.checkpoints().begin(), job.checkpoints().end(), [&job](const v1::Checkpoint& checkpoint) {
    return checkpoint.attempt() == job.attempt() && checkpoint.stall_seconds() < checkpoint.seconds();
  });
}

// Measured beside predicted.
void PrintMeasured(const v1::Job& job, std::ostream& out) {
  const v1::PlanSummary& plan = job.plan();
  const v1::Measured& measured = job.measured();
  const auto seconds = [](double value) { return value > 0 ? absl::StrCat(FormatNumber(value, 4), " s") : "-"; };
  const auto bytes = [](double value) { return value > 0 ? FormatBytes(value) : std::string("-"); };
  const auto tokens = [](double value) { return value > 0 ? FormatCount(value) : std::string("-"); };
  const auto share = [](double part, double whole) { return whole > 0 ? FormatPercent(part / whole) : "-"; };
  const auto planned_bytes = [&plan](const char* kind) {
    const auto found = plan.memory_bytes().find(kind);
    return found == plan.memory_bytes().end() ? 0.0 : static_cast<double>(found->second);
  };
  // Of its device. A GPU's rank has the copy for a checkpoint in the host's memory.
  const bool on_gpu = measured.device_memory_used_bytes() > 0;
  const int64_t used = on_gpu ? measured.device_memory_used_bytes() : measured.peak_memory_bytes();
  const double copied = !on_gpu && HasCopied(job) ? planned_bytes("checkpoint") : 0;
  std::vector<std::vector<std::string>> rows = {
      {"step", seconds(plan.predicted_step_seconds()), seconds(measured.step_seconds())},
      {"tokens/s", tokens(plan.predicted_tokens_per_second()), tokens(measured.tokens_per_second())},
      {"communication", share(plan.predicted_communication_seconds(), plan.predicted_step_seconds()),
       share(measured.communication_seconds(), measured.step_seconds())},
      {"memory of a rank", bytes(planned_bytes("total") + copied), bytes(static_cast<double>(used))},
      {"arena of a rank", bytes(planned_bytes("arena")), bytes(static_cast<double>(measured.arena_bytes()))},
      {"MFU",
       plan.predicted_step_seconds() > 0 && plan.peak_flops_per_second() > 0
           ? FormatPercent(plan.flops_per_step() / plan.predicted_step_seconds() / plan.peak_flops_per_second())
           : "-",
       measured.num_steps() > 0 ? FormatPercent(measured.mfu()) : "-"},
  };
  if (measured.has_device_idle_share()) rows.push_back({"GPU idle", "-", FormatPercent(measured.device_idle_share())});
  out << "\n";
  PrintTable({"", "predicted", "measured"}, rows, out);
}

// Who computes attention, and what was measured to choose them.
void PrintAttention(const v1::Measured& measured, std::ostream& out) {
  const auto milliseconds = [](double seconds) {
    return seconds > 0 ? absl::StrCat(FormatNumber(seconds * 1e3, 3), " ms") : "-";
  };
  std::vector<std::vector<std::string>> rows;
  for (const v1::AttentionChoice& choice : measured.attention()) {
    bool is_first = true;
    for (const v1::AttentionTiming& timing : choice.timings()) {
      rows.push_back({std::exchange(is_first, false) ? choice.shape() : "", timing.backend(),
                      milliseconds(timing.forward_seconds()), milliseconds(timing.backward_seconds()),
                      timing.backend() == choice.backend() ? "chosen"
                      : timing.refused().empty()           ? "-"
                                                           : absl::StrCat("refused: ", timing.refused())});
    }
  }
  if (rows.empty()) return;
  out << "\n";
  PrintTable({"attention", "backend", "forward", "backward", "choice"}, rows, out);
}

// By what matrices are multiplied, in a line: `-o json` has each shape.
void PrintProducts(const v1::Measured& measured, std::ostream& out) {
  int num_chosen = 0;
  double least = 1, most = 0;  // Of the time that is saved.
  for (const v1::ProductChoice& choice : measured.products()) {
    if (choice.algorithm() == "libtorch") continue;
    ++num_chosen;
    if (choice.libtorch_seconds() == 0) continue;
    const double saved = std::max(0.0, 1 - choice.seconds() / choice.libtorch_seconds());
    least = std::min(least, saved);
    most = std::max(most, saved);
  }
  if (measured.products().empty()) return;
  out << "\nproducts: " << num_chosen << " of " << measured.products_size() << " shapes by cuBLASLt's algorithms";
  if (most > 0) {
    out << ", in " << FormatPercent(least) << " to " << FormatPercent(most) << " less time than LibTorch takes";
  }
  out << "\n";
}

}  // namespace

std::string PhaseText(v1::Phase phase) {
  const auto* value = v1::Phase_descriptor()->FindValueByNumber(phase);
  return value == nullptr ? absl::StrCat("phase ", static_cast<int>(phase)) : EnumValueInJobFile(*value);
}

std::string StepsDone(const v1::Job& job) {
  // Before the plan is made, the steps of epochs are not known.
  if (job.max_steps() == 0) return absl::StrCat(job.step());
  if (job.step() > job.max_steps()) return absl::StrCat(job.step(), " (", job.max_steps(), " wanted)");
  return absl::StrCat(job.step(), "/", job.max_steps());
}

void PrintJob(const v1::Job& job, std::ostream& out) {
  Fields fields = {
      {"job", job.id()},
      {"project", job.project()},
      {"phase",
       job.reason().empty() ? PhaseText(job.phase()) : absl::StrCat(PhaseText(job.phase()), " (", job.reason(), ")")},
      {"steps", StepsText(job)},
      {"submitted", FormatTime(job.submitted_time())},
      {"started", FormatTime(job.started_time())},
      {"ended", FormatTime(job.ended_time())},
  };
  if (job.has_last_step()) fields.emplace_back("metrics", MetricsText(job.last_step()));
  if (job.has_last_eval()) {
    fields.emplace_back("held-out", absl::StrCat("step ", job.last_eval().step(), ": loss ",
                                                 FormatNumber(job.last_eval().eval_loss(), 5)));
  }
  if (job.skipped_steps() > 0)
    fields.emplace_back("skipped", absl::StrCat(job.skipped_steps(), " steps (gradient norm not finite)"));
  if (job.has_plan()) fields.emplace_back("layout", LayoutText(job.plan()));
  fields.emplace_back("checkpoints", job.checkpoint_dir());
  if (job.has_last_checkpoint()) {
    const v1::Checkpoint& last = job.last_checkpoint();
    const std::string time = FormatTime(last.time());
    fields.emplace_back("last checkpoint",
                        absl::StrCat(last.name(), ", ", FormatBytes(static_cast<double>(last.size_bytes())),
                                     time.empty() ? "" : ", ", time));
  }
  if (job.has_checkpoint_failure()) {
    const v1::CheckpointFailure& failure = job.checkpoint_failure();
    fields.emplace_back("not saved", absl::StrCat("all checkpoints since ", FormatTime(failure.since_time()),
                                                  " have failed: ", failure.message(), "; ",
                                                  job.has_last_checkpoint() ? absl::StrCat("the last good one is ",
                                                                                           job.last_checkpoint().name())
                                                                            : "there is none before"));
  }
  fields.emplace_back("model", job.exported_path());
  fields.emplace_back("attempt", job.attempt() > 0 ? absl::StrCat(job.attempt()) : "");
  for (const std::string& traffic : job.unencrypted()) fields.emplace_back("traffic", traffic);
  PrintFields(fields, out);
  for (const v1::Restart& restart : job.restarts()) {
    out << PrintableLines(absl::StrCat("restart after attempt ", restart.attempt(), " at step ", restart.step(), ", ",
                                       FormatTime(restart.time()), ": ", restart.cause()),
                          2)
        << "\n";
  }
  if (!job.ranks().empty()) {
    std::vector<std::vector<std::string>> rows;
    for (const v1::RankView& rank : job.ranks())
      rows.push_back({absl::StrCat(rank.rank()), rank.worker(), rank.state(), rank.resumed_from()});
    out << "\n";
    PrintTable({"rank", "worker", "state", "resumed from"}, rows, out);
  }
  if (job.has_plan()) PrintMeasured(job, out);
  PrintAttention(job.measured(), out);
  PrintProducts(job.measured(), out);
  if (!job.last_log_lines().empty()) out << "\nlast log lines of the rank that failed first:\n";
  for (const std::string& line : job.last_log_lines()) out << "  | " << Printable(line) << "\n";
}

}  // namespace tacc::client
