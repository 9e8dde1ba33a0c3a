#include "worker/rank/checkpointer.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {
namespace {

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

absl::Status Checkpointer::Save(int64_t step) {
  const double begin = Seconds();
  const CheckpointId id{step, start_.attempt};
  if (!is_clean_) {
    if (start_.rank == 0) {
      if (absl::Status status = RemoveUnfinishedCheckpoints(start_.checkpoint_dir); !status.ok()) {
        events_.Log(absl::StrCat("left-overs of an earlier attempt stay: ", status.message()));
      }
    }
    // Nobody writes before they are gone.
    TACC_RETURN_IF_ERROR(collectives_.Barrier());
    is_clean_ = true;
  }
  const absl::Status written =
      WriteShard(start_.checkpoint_dir, id, start_.rank, states_.MakeShard().tensors, failpoints_);
  if (!written.ok()) {
    events_.Warning("checkpoint_failed",
                    absl::StrCat("checkpoint of step ", step, ", rank ", start_.rank, ": ", written.message()));
  }
  TACC_ASSIGN_OR_RETURN(const auto all_written, collectives_.GatherHost({written.ok() ? 1u : 0u}));
  const bool complete =
      std::all_of(all_written.begin(), all_written.end(), [](const auto& flags) { return flags[0] == 1; });
  absl::Status committed;
  if (start_.rank == 0) {
    if (complete) {
      committed = Commit(step, begin);
      if (!committed.ok()) {
        events_.Warning("checkpoint_failed", absl::StrCat("checkpoint of step ", step, ": ", committed.message()));
      }
    } else if (absl::Status status = AbandonCheckpoint(start_.checkpoint_dir, id); !status.ok()) {
      events_.Log(absl::StrCat("an unfinished checkpoint stays: ", status.message()));
    }
  }
  TACC_ASSIGN_OR_RETURN(const auto results, collectives_.GatherHost({complete && committed.ok() ? 1u : 0u}));
  if (results[0][0] == 1) {
    last_saved_step_ = step;
    last_saved_path_ = absl::StrCat(start_.checkpoint_dir, "/", CheckpointName(id));
  }
  return absl::OkStatus();
}

absl::Status Checkpointer::Commit(int64_t step, double begin_seconds) {
  Manifest manifest;
  manifest.version = start_.version;
  manifest.job = start_.job;
  manifest.step = step;
  manifest.attempt = start_.attempt;
  manifest.identity = start_.identity;
  for (const graph::Mesh::Axis& axis : program_.mesh.axes) manifest.layout[axis.name] = axis.size;
  manifest.cursor_step = step;
  TACC_ASSIGN_OR_RETURN(const CommittedCheckpoint committed,
                        CommitCheckpoint(start_.checkpoint_dir, std::move(manifest), start_.world, failpoints_));
  const double seconds = Seconds() - begin_seconds;
  events_.Write("checkpoint", {{"step", step},
                               {"path", committed.name},
                               {"bytes", committed.num_bytes},
                               {"seconds", seconds},
                               {"stall_seconds", seconds}});
  return absl::OkStatus();
}

}  // namespace tacc::worker
