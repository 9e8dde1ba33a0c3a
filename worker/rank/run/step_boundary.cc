#include "worker/rank/run/step_boundary.h"

#include <algorithm>
#include <bit>
#include <vector>

#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/agreement.h"

namespace tacc::worker {

absl::StatusOr<BoundaryDecision> StepBoundary::Agree(const absl::StatusOr<Work>& work, double cpu_wait_share) {
  const CommandCounts counts = commands_.counts();
  const uint64_t progress = static_cast<uint64_t>(checkpointer_.progress());
  const Work mine = work.value_or(Work());
  TACC_ASSIGN_OR_RETURN(
      const auto all,
      collectives_.GatherHost({counts.checkpoints, counts.stops, mine.batch_hash, work.ok() ? 0u : 1u, progress,
                               std::bit_cast<uint64_t>(cpu_wait_share), static_cast<uint64_t>(mine.kind), mine.name}));
  if (std::any_of(all.begin(), all.end(), [](const auto& values) { return values[3] != 0; }))
    TACC_RETURN_IF_ERROR(AgreeOnStatus(collectives_, work.status()));
  BoundaryDecision decision;
  const auto has_the_same = [&](const auto& values) { return values[6] == all[0][6] && values[7] == all[0][7]; };
  const auto gives_up = [](const auto& values) { return values[6] == static_cast<uint64_t>(Work::Kind::kGiveUp); };
  if (std::any_of(all.begin(), all.end(), gives_up)) {
    decision.work = Work::Kind::kGiveUp;
  } else if (std::all_of(all.begin(), all.end(), has_the_same)) {
    decision.work = static_cast<Work::Kind>(all[0][6]);
  }
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
