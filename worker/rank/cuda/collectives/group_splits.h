#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_GROUP_SPLITS_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_GROUP_SPLITS_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"

namespace tacc::worker {

// Rank r's words in [r]; all ranks give equally many.
using GatherWords =
    std::function<absl::StatusOr<std::vector<std::vector<uint64_t>>>(const std::vector<uint64_t>& words)>;

// By which splits of a communicator of all ranks their groups come about, as ncclCommSplit's: all ranks take part in
// each split, in one order, and each is in one group of it at most. For each split this rank's group, empty where it
// has none. `groups`: those that this rank asks for, ascending ranks, itself among them; no two alike.
//
// Groups of which no rank is in two and whose members are as far from each other share a split, as those along the same
// axes of a mesh do. Groups may overlap (a sum over stages 0 and 1, another over 1 and 2): those come of several.
//
// All ranks call it. Errors, the same on all: Internal: not all members of a group ask for it.
absl::StatusOr<std::vector<std::vector<int>>> AgreeOnSplits(int rank, const std::vector<std::vector<int>>& groups,
                                                            const GatherWords& gather);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_GROUP_SPLITS_H_
