#include "worker/rank/run/finish.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "graph/ir/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/rank/collectives/agreement.h"
#include "worker/rank/protocol/failure_codes.h"
#include "worker/rank/protocol/retry.h"

namespace tacc::worker {
namespace {

// Between tries to export.
constexpr int kExportAgainSeconds[] = {1, 5, 25};
// Between tries to save the last checkpoint: what they would lose is a stretch of training.
constexpr int kSaveAgainSeconds[] = {1, 5, 25, 60, 60, 60, 60};

std::string InSeconds(int seconds) { return absl::StrCat("in ", seconds, seconds == 1 ? " second" : " seconds"); }

// Who looks at the rank sees that it goes on.
void Pause(RankParts& parts, int seconds) {
  for (int i = 0; i < seconds; ++i) {
    absl::SleepFor(absl::Seconds(1));
    parts.Beat();
  }
}

// OK, or the same error on every rank: "`what` could not be written: ...". It has a failure code unless ranks do not
// answer each other.
absl::Status TryToSave(RankParts& parts, int64_t step, const std::string& what) {
  TACC_RETURN_IF_ERROR(parts.checkpointer->Save(step));
  if (parts.checkpointer->last_saved_step() == step) return absl::OkStatus();
  absl::Status status = parts.checkpointer->last_error();
  if (!status.ok()) {
    const absl::Status named(status.code(), absl::StrCat(what, " could not be written: ", status.message()));
    status = WithFailureCode(OfFiles(named), "internal");
  }
  TACC_RETURN_IF_ERROR(AgreeOnStatus(parts.collectives, status));
  return WithFailureCode(absl::InternalError(absl::StrCat(what, " could not be written: no rank says why")),
                         "internal");
}

// What a checkpoint of `bytes` lacks: "; it takes 12.0 MB, and /runs has 3.0 MB free: 9.0 MB are missing". Empty where
// that is not why it could not be written.
std::string Missing(const std::string& dir, int64_t bytes) {
  std::error_code error;
  const auto free = static_cast<int64_t>(std::filesystem::space(dir, error).available);
  if (error || free >= bytes) return "";
  const auto megabytes = [](int64_t count) { return absl::StrFormat("%.1f MB", static_cast<double>(count) / 1e6); };
  return absl::StrCat("; it takes ", megabytes(bytes), ", and ", dir, " has ", megabytes(free),
                      " free: ", megabytes(bytes - free), " are missing");
}

// Saves the states as they are, again and again while what is in the way may pass. Errors as TryToSave.
absl::Status Save(RankParts& parts, int64_t step, const std::string& what) {
  RetryOptions retry;
  retry.wait_seconds = kSaveAgainSeconds;
  retry.may_pass = [](const absl::Status& status) { return GivenFailureCode(status) == kUnavailableCode; };
  int left = std::accumulate(std::begin(kSaveAgainSeconds), std::end(kSaveAgainSeconds), 0);
  retry.wait = [&](const absl::Status& status, int seconds) -> absl::Status {
    TACC_ASSIGN_OR_RETURN(const auto shards,
                          parts.collectives.GatherHost({static_cast<uint64_t>(parts.states->ShardBytes())}));
    int64_t bytes = 0;
    for (const std::vector<uint64_t>& shard : shards) bytes += static_cast<int64_t>(shard[0]);
    if (parts.start.rank == 0) {
      parts.events.Warning(
          "checkpoint_failed",
          absl::StrCat(status.message(),
                       absl::IsResourceExhausted(status) ? Missing(parts.start.checkpoint_dir, bytes) : "",
                       "; what was trained is still in memory: it is tried again ", InSeconds(seconds), ", and for ",
                       left, " seconds at most"));
    }
    left -= seconds;
    Pause(parts, seconds);
    return absl::OkStatus();
  };
  return Retry(retry, [&] { return TryToSave(parts, step, what); });
}

// Who does not want to wait cancels the job at once, and the ranks are killed.
absl::Status Stop(RankParts& parts, int64_t step) {
  const absl::Status status =
      Save(parts, step, absl::StrCat("training stopped at step ", step, ", but its checkpoint"));
  if (GivenFailureCode(status).empty()) return status;
  return WithFailureCode(absl::InternalError(status.message()), "checkpoint");
}

// An error with code `nonfinite`, the same on every rank, where a weight holds a number that is none: nothing is saved
// over a good checkpoint, or exported.
absl::Status CheckWeights(RankParts& parts, int64_t step) {
  bool is_finite = true;
  for (const graph::State& state : parts.program.states) {
    if (state.kind != graph::StateKind::kWeight || state.role == graph::WeightRole::kFrozen) continue;
    TACC_ASSIGN_OR_RETURN(const bool is_this_finite, parts.states->IsFinite(state.name));
    is_finite = is_finite && is_this_finite;
  }
  TACC_ASSIGN_OR_RETURN(const auto all, parts.collectives.GatherHost({is_finite ? 0u : 1u}));
  const auto broken = std::find_if(all.begin(), all.end(), [](const auto& words) { return words[0] != 0; });
  if (broken == all.end()) return absl::OkStatus();
  parts.checkpointer->Judge(false);
  TACC_RETURN_IF_ERROR(parts.checkpointer->Wait());
  const std::string good = parts.checkpointer->last_saved_step() >= 0
                               ? absl::StrCat(", and go on from ", parts.checkpointer->last_saved_path(),
                                              " (checkpoint.resume_from_checkpoint)")
                               : "";
  return WithFailureCode(
      absl::InternalError(absl::StrCat("after step ", step, " weights of rank ", broken - all.begin(),
                                       " hold numbers that are not finite: they are neither saved nor exported. Lower "
                                       "train.learning_rate",
                                       good)),
      "nonfinite");
}

// The path of a checkpoint of the states as they are.
absl::StatusOr<std::string> LastCheckpoint(RankParts& parts, const StartPoint& begin, int64_t step) {
  if (step == begin.step && !begin.checkpoint.empty()) return begin.checkpoint;
  TACC_RETURN_IF_ERROR(Save(parts, step, absl::StrCat("the last checkpoint, of step ", step, ",")));
  return parts.checkpointer->last_saved_path();
}

// A disk may be cleaned up, a file system come back; what lies in the way, or is damaged, stays.
bool MayPass(const absl::Status& status) {
  return IsOutage(status) || absl::IsResourceExhausted(status) || absl::IsInternal(status);
}

absl::Status TryToExport(RankParts& parts, const ExportRequest& request) {
  if (parts.options.failpoints != nullptr) TACC_RETURN_IF_ERROR(parts.options.failpoints->Hit("before_export"));
  TACC_ASSIGN_OR_RETURN(const ExportResult exported, ExportCheckpoint(request));
  if (exported.config_changed) {
    parts.events.Warning("config_changed",
                         absl::StrCat(request.model_dir, "/config.json has changed since the job was compiled; ",
                                      request.out_dir, " has the one that the model was trained with"));
  }
  return absl::OkStatus();
}

absl::Status Export(RankParts& parts, const ExportRequest& request) {
  RetryOptions retry;
  retry.wait_seconds = kExportAgainSeconds;
  retry.may_pass = MayPass;
  retry.wait = [&parts](const absl::Status& error, int seconds) {
    parts.events.Warning("export_failed", absl::StrCat(error.message(), "; it is tried again ", InSeconds(seconds)));
    Pause(parts, seconds);
    return absl::OkStatus();
  };
  const absl::Status status = Retry(retry, [&] { return TryToExport(parts, request); });
  if (status.ok()) {
    parts.events.Write(protocol::ExportedEvent{.path = request.out_dir});
    return status;
  }
  return WithFailureCode(
      absl::Status(status.code(), absl::StrCat("the model was trained and saved in ", request.checkpoint,
                                               ", but could not be exported: ", status.message())),
      "export");
}

}  // namespace

absl::Status Finish(RankParts& parts, const StartPoint& begin, const TrainLoop& loop) {
  if (!parts.saves_checkpoints()) return absl::OkStatus();
  if (loop.step() > begin.step) TACC_RETURN_IF_ERROR(CheckWeights(parts, loop.step()));
  if (loop.was_stopped()) return Stop(parts, loop.step());
  ExportRequest request;
  TACC_ASSIGN_OR_RETURN(request.checkpoint, LastCheckpoint(parts, begin, loop.step()));
  request.model_dir = parts.start.model_dir;
  request.out_dir = parts.start.export_dir;
  request.data_dir = parts.start.data_path;
  request.attempt = parts.start.attempt;
  request.config_json = parts.start.identity.value("config_json", std::string());
  if (parts.start.rank != 0 || request.out_dir.empty()) return absl::OkStatus();
  return Export(parts, request);
}

}  // namespace tacc::worker
