#include "worker/rank/finish.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/checkpoint/export.h"
#include "worker/rank/agreement.h"
#include "worker/rank/failure_codes.h"

namespace tacc::worker {
namespace {

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

}  // namespace

absl::Status Finish(RankParts& parts, const StartPoint& begin, const TrainLoop& loop) {
  if (!parts.saves_checkpoints()) return absl::OkStatus();
  if (loop.was_stopped()) return parts.checkpointer->Save(loop.step());
  ExportRequest request;
  TACC_ASSIGN_OR_RETURN(request.checkpoint, LastCheckpoint(parts, begin, loop.step()));
  request.model_dir = parts.start.model_dir;
  request.out_dir = parts.start.export_dir;
  request.attempt = parts.start.attempt;
  if (parts.start.rank != 0 || request.out_dir.empty()) return absl::OkStatus();
  TACC_RETURN_IF_ERROR(OfFiles(ExportCheckpoint(request).status()));
  parts.events.Write("exported", {{"path", request.out_dir}});
  return absl::OkStatus();
}

}  // namespace tacc::worker
