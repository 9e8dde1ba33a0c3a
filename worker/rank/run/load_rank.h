#ifndef TACC_WORKER_RANK_RUN_LOAD_RANK_H_
#define TACC_WORKER_RANK_RUN_LOAD_RANK_H_

#include "absl/status/statusor.h"
#include "worker/rank/run/load_states.h"
#include "worker/rank/run/rank_parts.h"

namespace tacc::worker {

// Makes all parts of a rank, connects it with the others and fills its states: returns when every rank is ready for the
// first step. All ranks of an attempt call it; it waits for them without limit until they have loaded.
//
// Ranks on CPUs load and bind before they meet. Ranks on GPUs meet before they bind: where they run decides how they
// talk, and that what is bound.
//
// Errors: InvalidArgument, NotFound and others for input that does not fit, with its name; ResourceExhausted;
// Unavailable when another rank has gone. Parts that were made before stay.
absl::StatusOr<StartPoint> LoadRank(RankParts& parts);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_LOAD_RANK_H_
