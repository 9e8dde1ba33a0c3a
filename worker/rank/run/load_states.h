#ifndef TACC_WORKER_RANK_RUN_LOAD_STATES_H_
#define TACC_WORKER_RANK_RUN_LOAD_STATES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/run/rank_parts.h"

namespace tacc::worker {

// Where training begins.
struct StartPoint {
  int64_t step = 0;          // Updates done.
  std::string checkpoint;    // Path of the one that the states came from; empty: they are the model's.
  std::string client_state;  // What the client had it keep; empty: nothing.
};

// Fills the states from the checkpoint that the start file names, or with the model's weights. Errors: as
// RankStates::Initialize and Load. With code `unavailable`: a checkpoint or the weights could not be read, which says
// nothing of what is in them; with code `checkpoint_damaged`, and a warning event: what was read of the checkpoint is
// wrong (no code where the user named it by its path). No other checkpoint is taken: the coordinator knows which may
// be.
absl::StatusOr<StartPoint> LoadStates(RankParts& parts);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_LOAD_STATES_H_
