#include "worker/rank/step_boundary.h"

#include <algorithm>
#include <vector>

#include "graph/ir/status_macros.h"
#include "worker/rank/agreement.h"

namespace tacc::worker {

absl::StatusOr<BoundaryDecision> StepBoundary::Agree(const absl::Status& data, uint64_t hash) {
  const CommandCounts counts = commands_.counts();
  const uint64_t progress = static_cast<uint64_t>(checkpointer_.progress());
  TACC_ASSIGN_OR_RETURN(const auto all, collectives_.GatherHost({counts.checkpoints, counts.stops, data.ok() ? hash : 0,
                                                                 data.ok() ? 0u : 1u, progress}));
  if (std::any_of(all.begin(), all.end(), [](const auto& values) { return values[3] != 0; }))
    TACC_RETURN_IF_ERROR(AgreeOnStatus(collectives_, data));
  BoundaryDecision decision;
  uint64_t checkpoints = 0;
  std::vector<Checkpointer::Progress> saving;
  for (const std::vector<uint64_t>& rank : all) {
    checkpoints = std::max(checkpoints, rank[0]);
    decision.stops = decision.stops || rank[1] > 0;
    decision.batch_hash += rank[2];
    saving.push_back(static_cast<Checkpointer::Progress>(rank[4]));
  }
  checkpointer_.Advance(saving);
  decision.saves = checkpoints > checkpoints_done_;
  checkpoints_done_ = checkpoints;
  return decision;
}

}  // namespace tacc::worker
