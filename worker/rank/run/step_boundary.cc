#include "worker/rank/run/step_boundary.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/agreement.h"

namespace tacc::worker {

absl::StatusOr<BoundaryDecision> StepBoundary::Agree(const absl::Status& data, uint64_t hash, double cpu_wait_share) {
  const CommandCounts counts = commands_.counts();
  const uint64_t progress = static_cast<uint64_t>(checkpointer_.progress());
  TACC_ASSIGN_OR_RETURN(const auto all, collectives_.GatherHost({counts.checkpoints, counts.stops, data.ok() ? hash : 0,
                                                                 data.ok() ? 0u : 1u, progress,
                                                                 std::bit_cast<uint64_t>(cpu_wait_share)}));
  if (std::any_of(all.begin(), all.end(), [](const auto& values) { return values[3] != 0; }))
    TACC_RETURN_IF_ERROR(AgreeOnStatus(collectives_, data));
  BoundaryDecision decision;
  uint64_t checkpoints = 0;
  std::vector<Checkpointer::Progress> saving;
  for (size_t i = 0; i < all.size(); ++i) {
    const std::vector<uint64_t>& rank = all[i];
    checkpoints = std::max(checkpoints, rank[0]);
    decision.stops = decision.stops || rank[1] > 0;
    decision.batch_hash += rank[2];
    saving.push_back(static_cast<Checkpointer::Progress>(rank[4]));
    if (const double share = std::bit_cast<double>(rank[5]); share > decision.cpu_wait_share) {
      decision.cpu_wait_share = share;
      decision.waiting_rank = static_cast<int64_t>(i);
    }
  }
  checkpointer_.Advance(saving);
  decision.saves = checkpoints > checkpoints_done_;
  checkpoints_done_ = checkpoints;
  return decision;
}

}  // namespace tacc::worker
