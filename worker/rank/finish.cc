#include "worker/rank/finish.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "graph/ir/status_macros.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/export.h"
#include "worker/checkpoint/posix_file.h"
#include "worker/rank/agreement.h"
#include "worker/rank/failure_codes.h"

namespace tacc::worker {
namespace {

// Between tries to export.
constexpr int kRetryAfterSeconds[] = {1, 5, 25};

absl::Status Stop(RankParts& parts, int64_t step) {
  TACC_RETURN_IF_ERROR(parts.checkpointer->Save(step));
  if (parts.checkpointer->last_saved_step() == step) return absl::OkStatus();
  const absl::Status why = AgreeOnStatus(parts.collectives, parts.checkpointer->last_error());
  return WithFailureCode(
      absl::InternalError(absl::StrCat("training stopped at step ", step, ", but its checkpoint could not be written: ",
                                       why.ok() ? "no rank says why" : why.message())),
      "checkpoint");
}

// The path of a checkpoint of the states as they are.
absl::StatusOr<std::string> LastCheckpoint(RankParts& parts, const StartPoint& begin, int64_t step) {
  if (step == begin.step && !begin.checkpoint.empty()) return begin.checkpoint;
  TACC_RETURN_IF_ERROR(parts.checkpointer->Save(step));
  if (parts.checkpointer->last_saved_step() != step) {
    const absl::Status status = parts.checkpointer->last_error();
    TACC_RETURN_IF_ERROR(AgreeOnStatus(
        parts.collectives,
        OfFiles(status.ok()
                    ? status
                    : absl::Status(status.code(), absl::StrCat("the last checkpoint, of step ", step,
                                                               ", could not be written: ", status.message())))));
    return absl::InternalError(absl::StrCat("no rank says why the checkpoint of step ", step, " was not written"));
  }
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
  absl::Status status = TryToExport(parts, request);
  for (const int seconds : kRetryAfterSeconds) {
    if (status.ok() || !MayPass(status)) break;
    parts.events.Warning("export_failed", absl::StrCat(status.message(), "; it is tried again in ", seconds,
                                                       seconds == 1 ? " second" : " seconds"));
    absl::SleepFor(absl::Seconds(seconds));
    status = TryToExport(parts, request);
  }
  if (status.ok()) {
    parts.events.Write("exported", {{"path", request.out_dir}});
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
  if (loop.was_stopped()) return Stop(parts, loop.step());
  ExportRequest request;
  TACC_ASSIGN_OR_RETURN(request.checkpoint, LastCheckpoint(parts, begin, loop.step()));
  request.model_dir = parts.start.model_dir;
  request.out_dir = parts.start.export_dir;
  request.data_dir = parts.start.data_path;
  request.attempt = parts.start.attempt;
  request.config_json = nlohmann::json::parse(parts.start.identity).value("config_json", std::string());
  if (parts.start.rank != 0 || request.out_dir.empty()) return absl::OkStatus();
  return Export(parts, request);
}

}  // namespace tacc::worker
