#include "worker/rank/run/load_states.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/checkpoint/reader.h"
#include "worker/rank/protocol/failure_codes.h"

namespace tacc::worker {
namespace {

// The ranks share the work of reading everything once.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenWhole(RankParts& parts, const std::string& path) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  if (parts.start.rank == 0 && !checkpoint->manifest().has_checksum) {
    parts.events.Log(
        absl::StrCat(path, ": its manifest is of format 1, without a checksum: of its damage not all is seen"));
  }
  TACC_RETURN_IF_ERROR(checkpoint->VerifyData(parts.start.rank, parts.start.world, [&parts] { parts.Beat(); }));
  return checkpoint;
}

absl::StatusOr<StartPoint> LoadCheckpoint(RankParts& parts, const std::string& name) {
  const bool is_path = absl::StartsWith(name, "/");
  const std::string path = is_path ? name : absl::StrCat(parts.start.checkpoint_dir, "/", name);
  parts.Show(Activity::kLoadingCheckpoint);
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenWhole(parts, path);
  if (!checkpoint.ok()) {
    if (IsOutage(checkpoint.status())) return OfFiles(checkpoint.status());
    parts.events.Warning("checkpoint_damaged", std::string(checkpoint.status().message()));
    // Another one can take its place, but for what the user named.
    return is_path ? checkpoint.status() : WithFailureCode(checkpoint.status(), "checkpoint_damaged");
  }
  TACC_RETURN_IF_ERROR(parts.states->Load(**checkpoint));
  return StartPoint{(*checkpoint)->manifest().step, path};
}

}  // namespace

absl::StatusOr<StartPoint> LoadStates(RankParts& parts) {
  const StartFile& start = parts.start;
  if (!start.resume.empty()) return LoadCheckpoint(parts, start.resume);
  parts.Show(Activity::kLoadingWeights);
  std::unique_ptr<ModelWeights> weights;
  if (start.weights == StartFile::Weights::kPretrained) {
    TACC_ASSIGN_OR_RETURN(weights, OfFiles(ModelWeights::Open(start.model_dir)));
  }
  TACC_RETURN_IF_ERROR(parts.states->Initialize(weights.get(), start.seed));
  return StartPoint{};
}

}  // namespace tacc::worker
