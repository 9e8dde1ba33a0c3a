#include "worker/rank/run/step_reports.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "worker/data/target_entropy.h"
#include "worker/rank/protocol/failure_codes.h"

namespace tacc::worker {
namespace {

// Enough for the second digit of the entropy, and read in a tenth of a second. Each sample is a read elsewhere in the
// files: on a cold network folder, at 10 ms, all take 10 seconds a column, in which the other ranks wait.
constexpr int64_t kEntropyTokens = 1 << 21, kEntropySamples = 1024;

// Whether "loss" is more than the cross-entropy: these count what the load-balancing loss of experts is made of.
bool HasAuxLoss(const graph::Program& program) {
  return std::any_of(program.graphs.begin(), program.graphs.end(), [](const graph::Graph& graph) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                       [](const graph::Node& node) { return node.op == "expert_counts"; });
  });
}

}  // namespace

absl::StatusOr<double> StepReports::Entropy() const {
  if (HasAuxLoss(parts_.program)) return absl::UnimplementedError("the loss is no cross-entropy");
  if (parts_.dataset == nullptr) return absl::UnimplementedError("the data is a client's");
  return TargetEntropy(*parts_.dataset, parts_.start.seq_len, parts_.start.seed, kEntropyTokens, kEntropySamples);
}

absl::Status StepReports::Finished(int64_t step, const LaunchedStep& launched) {
  TACC_RETURN_IF_ERROR(WriteEvent(step, launched));
  TACC_RETURN_IF_ERROR(Watch());
  TACC_RETURN_IF_ERROR(CountSkipped(step, launched.batch_hash));
  return CheckStuck(step);
}

StepReports::Size StepReports::SizeOf(const std::vector<int64_t>& lengths) const {
  Size size{parts_.start.global_batch_size * parts_.start.seq_len, 0};
  if (lengths.empty()) return size;
  const int64_t num_micro_batches = parts_.executor->num_micro_batches();
  const nlohmann::json flops = parts_.start.run.value("flops_of_length", nlohmann::json::object());
  size.tokens = 0;
  for (const int64_t length : lengths) {
    size.tokens += parts_.start.global_batch_size / num_micro_batches * length;
    const nlohmann::json of_step = flops.value(absl::StrCat(length), nlohmann::json(0));
    if (of_step.is_number()) size.flops += of_step.get<double>() / static_cast<double>(num_micro_batches);
  }
  return size;
}

absl::Status StepReports::WriteEvent(int64_t step, const LaunchedStep& launched) {
  const Executor& executor = *parts_.executor;
  // Of steps that follow each other without a gap, the time from one's end to the next one's.
  const double now = SteadySeconds(), seconds = now - std::max(launched.begin, last_finish_seconds_);
  last_finish_seconds_ = now;
  const double waited = parts_.collectives.stats().wait_seconds, communication = waited - communication_seconds_;
  communication_seconds_ = waited;
  if (parts_.start.rank != 0) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(const double loss, executor.Output("loss"));
  TACC_ASSIGN_OR_RETURN(const double grad_norm, executor.Output("grad_norm"));
  TACC_ASSIGN_OR_RETURN(const double learning_rate, executor.Output("learning_rate"));
  TACC_ASSIGN_OR_RETURN(const double target_tokens, executor.Output("target_tokens"));
  TACC_ASSIGN_OR_RETURN(const double skipped, executor.Output("skipped"));
  if (target_tokens == 0) {
    parts_.events.WarningOnce(
        "no_targets",
        absl::StrCat("step ", step, " has no target: no token of its batch is to be ", "predicted",
                     parts_.dataset == nullptr ? "" : absl::StrCat(" (loss_mask of ", parts_.start.data_path, ")"),
                     "; its loss and gradient are no numbers and its update is skipped; of "
                     "further such steps nothing is said"));
  }
  if (const std::string words = loss_.Take(step, loss, target_tokens); !words.empty())
    parts_.events.Warning("loss_above_unigram_entropy", words);
  const auto [tokens, flops] = SizeOf(launched.lengths);
  nlohmann::json event = {{"step", step},
                          {"loss", loss},
                          {"grad_norm", grad_norm},
                          {"learning_rate", learning_rate},
                          {"tokens", tokens},
                          {"target_tokens", static_cast<int64_t>(target_tokens)},
                          {"seconds", seconds},
                          {"data_wait_seconds", launched.data_wait_seconds},
                          {"communication_seconds", communication},
                          {"tokens_per_second", static_cast<double>(tokens) / seconds},
                          {"batch_hash", HashText(launched.batch_hash)},
                          {"skipped", skipped != 0 ? 1 : 0}};
  if (flops > 0) event["flops"] = flops;
  if (const absl::StatusOr<double> overflow = executor.Output("expert_overflow"); overflow.ok())
    event["expert_overflow"] = static_cast<int64_t>(*overflow);
  if (const absl::StatusOr<double> loss_scale = executor.Output("loss_scale"); loss_scale.ok())
    event["loss_scale"] = *loss_scale;
  const std::optional<double> active_seconds =
      parts_.gaps == nullptr ? std::nullopt : parts_.gaps->ActiveSeconds(executor.busy_seconds());
  parts_.metrics->AddToStep(active_seconds, seconds, &event);
  if (parts_.device->is_asynchronous()) event["replays"] = executor.num_replays();
  parts_.WritePoint(protocol::kStepEvent, std::move(event));
  return absl::OkStatus();
}

bool StepReports::HalvesScale() const {
  const absl::StatusOr<double> loss_scale = parts_.executor->Output("loss_scale");
  return loss_scale.ok() && *loss_scale > graph::kLeastLossScale;
}

absl::Status StepReports::Watch() {
  TACC_ASSIGN_OR_RETURN(const double loss, parts_.executor->Output("loss"));
  TACC_ASSIGN_OR_RETURN(const double grad_norm, parts_.executor->Output("grad_norm"));
  TACC_ASSIGN_OR_RETURN(const double skipped, parts_.executor->Output("skipped"));
  stuck_.Take(loss, grad_norm, skipped != 0);
  // A skipped update says nothing: the batch may be to blame. But where the loss is a number and the loss scale is
  // being sought, that is why.
  const bool seeks_scale = std::isfinite(loss) && HalvesScale();
  if (skipped == 0 || seeks_scale) parts_.checkpointer->Judge(seeks_scale || !stuck_.is_in_doubt());
  has_updated_ = has_updated_ || skipped == 0;
  return absl::OkStatus();
}

absl::Status StepReports::CountSkipped(int64_t step, uint64_t batch_hash) {
  TACC_ASSIGN_OR_RETURN(const double skipped, parts_.executor->Output("skipped"));
  skipped_in_a_row_ = skipped != 0 && !HalvesScale() ? skipped_in_a_row_ + 1 : 0;
  TACC_ASSIGN_OR_RETURN(const double target_tokens, parts_.executor->Output("target_tokens"));
  broken_in_a_row_ = skipped_in_a_row_ > 0 && target_tokens > 0 ? broken_in_a_row_ + 1 : 0;
  if (skipped_in_a_row_ == 0) return absl::OkStatus();
  if (parts_.start.rank == 0) {
    parts_.events.Warning("nonfinite",
                          absl::StrCat("step ", step, ": the gradient norm is not finite; the update was skipped (",
                                       skipped_in_a_row_, " in a row)"));
  }
  if (skipped_in_a_row_ >= kMaxSkippedInARow) return NonfiniteError(step, skipped_in_a_row_, batch_hash);
  const bool ends_broken = step == parts_.start.max_steps && has_updated_ && broken_in_a_row_ > kMaxSkippedAtTheEnd;
  return ends_broken ? NonfiniteError(step, broken_in_a_row_, batch_hash) : absl::OkStatus();
}

absl::Status StepReports::CheckStuck(int64_t step) {
  TACC_ASSIGN_OR_RETURN(const double loss, parts_.executor->Output("loss"));
  if (stuck_.num_steps() == kStepsBeforeWarning && parts_.start.rank == 0 && !has_warned_of_no_gradient_) {
    has_warned_of_no_gradient_ = true;
    parts_.events.Warning(
        "zero_gradient",
        absl::StrCat("step ", step, ": for ", stuck_.num_steps(), " steps the gradient is 0 and the ", "loss stays at ",
                     loss, ": nothing is learned; look at train.learning_rate and ", "the initial weights"));
  }
  if (parts_.start.rank == 0 && step == parts_.start.max_steps && !has_updated_) {
    parts_.events.Warning("nonfinite",
                          absl::StrCat("no update was made up to step ", step, ", the last: ", WhyAllSkipped()));
  }
  if (!stuck_.is_stuck()) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(const std::string advice, WhereToGoOn(step));
  const std::string why =
      stuck_.num_skipped() > 0
          ? absl::StrCat("for ", stuck_.num_skipped(), " steps, up to step ", step, ", ", WhyAllSkipped())
          : absl::StrCat("for ", stuck_.num_steps(), " steps, up to step ", step,
                         ", the gradient is 0 and the loss stays at ", loss,
                         ". Most often the learning rate was too high (train.learning_rate; more train.warmup_steps "
                         "help too), or the initial weights are broken. ",
                         advice);
  const std::string words =
      absl::StrCat("the training is stuck: ", why, ". train.stop_if_stuck_steps: 0 lets such a run go on");
  return WithFailureCode(absl::InternalError(words), "stuck");
}

absl::StatusOr<std::string> StepReports::WhereToGoOn(int64_t step) {
  Checkpointer& checkpointer = *parts_.checkpointer;
  checkpointer.Judge(false);
  TACC_RETURN_IF_ERROR(checkpointer.Wait());
  // What a step shows is of the weights after the step before.
  const int64_t first_bad = step - stuck_.num_bad();
  if (first_bad <= 0) return "The initial weights may be broken: look at them, or lower the learning rate";
  const bool has_saved_good = checkpointer.last_saved_step() >= 0 && checkpointer.last_saved_step() < first_bad;
  const std::string good = has_saved_good            ? checkpointer.last_saved_path()
                           : begin_.step < first_bad ? begin_.checkpoint
                                                     : "";
  return absl::StrCat(
      "A checkpoint of step ", first_bad, " or later is of no use. Lower the learning rate and submit again, with ",
      good.empty()
          ? absl::StrCat("checkpoint.resume_from_checkpoint: never to begin anew, or the path of a checkpoint of a "
                         "step before ",
                         first_bad, ", if there is one")
          : absl::StrCat("checkpoint.resume_from_checkpoint: ", good, " to go on from there, or never to begin anew"));
}

std::string StepReports::WhyAllSkipped() const {
  const absl::StatusOr<double> scale = parts_.executor->Output("loss_scale");
  return absl::StrCat("every update was skipped, as the gradient norm was not finite: ",
                      scale.ok() ? absl::StrCat("the loss scale was still ", *scale,
                                                ", or activations overflow float16; use compute.bf16, or a lower "
                                                "compute.grad_scaler.init_scale")
                                 : "lower train.learning_rate, or look at the initial weights");
}

// Every rank sees the same norm; the one to name is the first whose own part of the loss or of the gradients is not
// finite.
absl::Status StepReports::NonfiniteError(int64_t step, int num_skipped, uint64_t batch_hash) {
  bool loss_ok = true, gradients_ok = true;
  for (const graph::State& state : parts_.program.states) {
    if (state.kind != graph::StateKind::kCounter && state.kind != graph::StateKind::kGradient) continue;
    TACC_ASSIGN_OR_RETURN(const bool is_finite, parts_.states->IsFinite(state.name));
    if (!is_finite) (state.kind == graph::StateKind::kCounter ? loss_ok : gradients_ok) = false;
  }
  TACC_ASSIGN_OR_RETURN(const auto all, parts_.collectives.GatherHost({loss_ok ? 0u : 1u, gradients_ok ? 0u : 1u}));
  std::string place = "every rank's loss and gradients are finite, their sum is not";
  for (const int what : {1, 0}) {
    for (size_t rank = all.size(); rank-- > 0;) {
      if (all[rank][what] != 0)
        place = absl::StrCat("first on rank ", rank, ", in its ", what == 0 ? "loss" : "gradients");
    }
  }
  TACC_ASSIGN_OR_RETURN(const std::string advice, WhereToGoOn(step));
  const absl::Status error = absl::InternalError(absl::StrCat(
      "the gradient norm was not finite in ", num_skipped, " steps in a row, the last is step ", step, ", batch ",
      HashText(batch_hash), "; ", place, ". ", advice, ". `taccctl data show` shows the batch"));
  return WithFailureCode(error, "nonfinite");
}

}  // namespace tacc::worker
