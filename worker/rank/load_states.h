#ifndef TACC_WORKER_RANK_LOAD_STATES_H_
#define TACC_WORKER_RANK_LOAD_STATES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/rank_parts.h"

namespace tacc::worker {

// Where training begins.
struct StartPoint {
  int64_t step = 0;        // Updates done.
  std::string checkpoint;  // Path of the one that the states came from; empty: they are the model's.
};

// Fills the states from the checkpoint that the start file names, or with the model's weights. Errors: as
// RankStates::Initialize and Load; of a checkpoint that cannot be read or is damaged.
absl::StatusOr<StartPoint> LoadStates(RankParts& parts);

// All ranks call it with what their LoadStates returned: all begin with the same states, or none does. A checkpoint
// that any rank finds damaged is left for the one before it, unless the user named it by its path. Errors: of
// LoadStates, the same on every rank.
absl::StatusOr<StartPoint> AgreeOnStates(RankParts& parts, absl::StatusOr<StartPoint> loaded);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_LOAD_STATES_H_
