#include "worker/rank/cuda/collectives/group_splits.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/cuda/collectives/call_watch.h"

namespace tacc::worker {
namespace {

// By which ranks name a group to each other: 8 bytes, where its members may be thousands.
uint64_t IdOf(const std::vector<int>& group) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const int rank : group) hash = (hash ^ static_cast<uint64_t>(rank)) * 1099511628211ull;
  return hash;
}

std::vector<int> DistancesIn(const std::vector<int>& group) {
  std::vector<int> distances;
  for (const int rank : group) distances.push_back(rank - group[0]);
  return distances;
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int>>> AgreeOnSplits(int rank, const std::vector<std::vector<int>>& groups,
                                                            const GatherWords& gather) {
  TACC_ASSIGN_OR_RETURN(const auto counts, gather({groups.size()}));
  std::vector<uint64_t> mine;
  for (const std::vector<int>& group : groups) mine.push_back(IdOf(group));
  uint64_t most = 0;
  for (const std::vector<uint64_t>& count : counts) most = std::max(most, count[0]);
  if (most == 0) return std::vector<std::vector<int>>();
  mine.resize(most);
  TACC_ASSIGN_OR_RETURN(const auto all, gather(mine));
  std::map<uint64_t, std::vector<int>> asking;  // Who asks for a group: its members.
  for (size_t r = 0; r < all.size(); ++r) {
    for (uint64_t i = 0; i < counts[r][0]; ++i) asking[all[r][i]].push_back(static_cast<int>(r));
  }
  // By distances, then by members: the same order everywhere.
  std::map<std::vector<int>, std::vector<std::vector<int>>> alike;
  for (const auto& [id, members] : asking) {
    if (IdOf(members) != id)
      return absl::InternalError(
          absl::StrCat("only ", RanksText(members), " asked for a group, which has other members too"));
    alike[DistancesIn(members)].push_back(members);
  }
  std::vector<std::vector<int>> splits;
  for (auto& [distances, wanted] : alike) {
    std::sort(wanted.begin(), wanted.end());
    struct Split {
      std::vector<bool> is_taken;  // By rank.
      std::vector<int> mine;
    };
    std::vector<Split> apart;
    for (const std::vector<int>& group : wanted) {
      const auto has_room = [&group](const Split& split) {
        return std::none_of(group.begin(), group.end(), [&split](int member) { return split.is_taken[member]; });
      };
      auto split = std::find_if(apart.begin(), apart.end(), has_room);
      if (split == apart.end()) split = apart.insert(split, {std::vector<bool>(all.size()), {}});
      for (const int member : group) {
        split->is_taken[member] = true;
        if (member == rank) split->mine = group;
      }
    }
    for (Split& split : apart) splits.push_back(std::move(split.mine));
  }
  return splits;
}

}  // namespace tacc::worker
