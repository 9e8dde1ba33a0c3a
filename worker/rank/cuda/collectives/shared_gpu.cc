#include "worker/rank/cuda/collectives/shared_gpu.h"

#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {

absl::StatusOr<std::string> FindSharedGpu(Collectives& host, const GpuId& gpu) {
  TACC_ASSIGN_OR_RETURN(const auto all, host.GatherHost({gpu.begin(), gpu.end()}));
  std::map<std::vector<uint64_t>, size_t> ranks;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const auto [it, is_new] = ranks.emplace(all[rank], rank);
    if (!is_new) return absl::StrCat("ranks ", it->second, " and ", rank, " run on one GPU");
  }
  return std::string();
}

}  // namespace tacc::worker
