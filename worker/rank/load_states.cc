#include "worker/rank/load_states.h"

#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/checkpoint/reader.h"
#include "worker/rank/agreement.h"

namespace tacc::worker {
namespace {

absl::StatusOr<StartPoint> LoadCheckpoint(RankParts& parts, const std::string& name) {
  const std::string path = absl::StartsWith(name, "/") ? name : absl::StrCat(parts.start.checkpoint_dir, "/", name);
  parts.Show(Activity::kLoadingCheckpoint);
  TACC_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::Open(path));
  // The ranks share the work of reading everything once.
  TACC_RETURN_IF_ERROR(checkpoint->VerifyData(parts.start.rank, parts.start.world, [&parts] { parts.Beat(); }));
  TACC_RETURN_IF_ERROR(parts.states->Load(*checkpoint));
  return StartPoint{checkpoint->manifest().step, path};
}

// The newest checkpoint before `name` whose structure is whole; empty when there is none. The same on every rank: they
// see one directory.
std::string OlderCheckpoint(const std::string& checkpoint_dir, const std::string& name) {
  const auto entries = ListCheckpoints(checkpoint_dir);
  if (!entries.ok()) return "";
  bool is_older = false;
  for (const CheckpointEntry& entry : *entries) {
    if (is_older && entry.status.ok()) return entry.name;
    is_older = is_older || entry.name == name;
  }
  return "";
}

}  // namespace

absl::StatusOr<StartPoint> LoadStates(RankParts& parts) {
  const StartFile& start = parts.start;
  if (!start.resume.empty()) return LoadCheckpoint(parts, start.resume);
  parts.Show(Activity::kLoadingWeights);
  std::unique_ptr<ModelWeights> weights;
  if (start.weights == StartFile::Weights::kPretrained) {
    TACC_ASSIGN_OR_RETURN(weights, ModelWeights::Open(start.model_dir));
  }
  TACC_RETURN_IF_ERROR(parts.states->Initialize(weights.get(), start.seed));
  return StartPoint{};
}

absl::StatusOr<StartPoint> AgreeOnStates(RankParts& parts, absl::StatusOr<StartPoint> loaded) {
  for (std::string name = parts.start.resume;;) {
    const absl::Status agreed = AgreeOnStatus(parts.collectives, loaded.status());
    if (agreed.ok()) return loaded;
    if (!loaded.ok() && !name.empty())
      parts.events.Warning("checkpoint_damaged", std::string(loaded.status().message()));
    if (name.empty() || absl::StartsWith(name, "/")) return agreed;
    name = OlderCheckpoint(parts.start.checkpoint_dir, name);
    if (name.empty()) return agreed;
    loaded = LoadCheckpoint(parts, name);
    parts.Show(Activity::kMeeting);
  }
}

}  // namespace tacc::worker
