#include "worker/rank/run/load_states.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/checkpoint/identity.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/model_fingerprint.h"
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

absl::StatusOr<StartPoint> LoadCheckpoint(RankParts& parts, const std::string& name, const InitialWeights& initial) {
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
  TACC_RETURN_IF_ERROR(parts.states->Load(**checkpoint, initial));
  TACC_ASSIGN_OR_RETURN(std::string client_state, ReadClientState(**checkpoint));
  return StartPoint{(*checkpoint)->manifest().step, path, std::move(client_state)};
}

bool HasFrozen(const graph::Program& program) {
  return std::any_of(program.states.begin(), program.states.end(),
                     [](const graph::State& state) { return state.role == graph::WeightRole::kFrozen; });
}

// Checkpoints do not hold what is frozen, so its files must stay as they were when the training began.
absl::Status CheckBase(const StartFile& start) {
  const std::string wanted = BaseFingerprint(ParseIdentity(start.identity).weights);
  if (start.rank != 0 || wanted.empty()) return absl::OkStatus();
  TACC_ASSIGN_OR_RETURN(const std::string found, OfFiles(ModelFingerprint(start.model_dir)));
  if (found == wanted) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(start.model_dir, ": the weights have changed since the training began, which reads those that are ",
                   "frozen from there: they are now ", found, ", but the job is of ", wanted,
                   "; put them back, or begin again with a name or checkpoint.dir of its own"));
}

}  // namespace

absl::StatusOr<StartPoint> LoadStates(RankParts& parts) {
  const StartFile& start = parts.start;
  const bool is_resumed = !start.resume.empty();
  std::unique_ptr<ModelWeights> weights, adapter;
  InitialWeights initial;
  initial.seed = start.seed;
  if (start.weights == StartFile::Weights::kPretrained && (!is_resumed || HasFrozen(parts.program))) {
    parts.Show(Activity::kLoadingWeights);
    if (HasFrozen(parts.program)) TACC_RETURN_IF_ERROR(CheckBase(start));
    TACC_ASSIGN_OR_RETURN(weights, OfFiles(ModelWeights::Open(start.model_dir)));
    initial.model = weights.get();
  }
  if (!start.adapter_dir.empty() && !is_resumed) {
    TACC_ASSIGN_OR_RETURN(adapter, OfFiles(ModelWeights::OpenAdapter(start.adapter_dir)));
    initial.adapter = adapter.get();
  }
  if (is_resumed) return LoadCheckpoint(parts, start.resume, initial);
  parts.Show(Activity::kLoadingWeights);
  TACC_RETURN_IF_ERROR(parts.states->Initialize(initial));
  return StartPoint{};
}

}  // namespace tacc::worker
