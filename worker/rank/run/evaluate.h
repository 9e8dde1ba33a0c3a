#ifndef TACC_WORKER_RANK_RUN_EVALUATE_H_
#define TACC_WORKER_RANK_RUN_EVALUATE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "worker/rank/run/rank_parts.h"

namespace tacc::worker {

// Runs all held-out batches after `step` updates and writes their event (where none has a target, a warning, once);
// nothing where there are none. All ranks call it; nothing is in flight. Errors: as Executor::RunEval; of reading a
// batch.
absl::Status Evaluate(RankParts& parts, int64_t step);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_EVALUATE_H_
