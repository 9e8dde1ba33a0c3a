#include "worker/rank/cuda/collectives/choose_collectives.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/agreement.h"
#include "worker/rank/collectives/staged_collectives.h"

namespace tacc::worker {

absl::StatusOr<RankTalk> ChooseCollectives(const RankTalkOptions& options, const RankGpu& gpu) {
  const absl::StatusOr<GpuId> id = gpu.id();
  TACC_RETURN_IF_ERROR(AgreeOnStatus(*options.host, id.status()));
  TACC_ASSIGN_OR_RETURN(const std::string shared, FindSharedGpu(*options.host, *id));
  RankTalk talk;
  if (!shared.empty() && !options.may_share_gpu) {
    talk.detour = absl::StrCat(shared,
                               ", which NCCL refuses: collectives go by way of the host's memory, right but slow; give "
                               "each rank a GPU of its own");
    talk.queue = std::make_unique<StagedCollectives>(gpu.device, options.host);
    return talk;
  }
  absl::StatusOr<std::unique_ptr<Communication>> communication = gpu.make_communication();
  TACC_RETURN_IF_ERROR(AgreeOnStatus(*options.host, communication.status()));
  talk.queue = std::make_unique<DeviceCollectives>(*std::move(communication), options.deterministic
                                                                                  ? DeviceCollectives::Sums::kInOrder
                                                                                  : DeviceCollectives::Sums::kLibrary);
  return talk;
}

}  // namespace tacc::worker
