#ifndef TACC_WORKER_RANK_RUN_RUN_H_
#define TACC_WORKER_RANK_RUN_RUN_H_

#include "worker/rank/run/run_options.h"

namespace tacc::worker {

// One rank of one attempt from start file to exit: the protocol of docs/contracts.md. Returns the exit code
// (failure_codes.h); the reason of a non-zero one has been sent as a `failed` event.
int RunRank(const RunOptions& options);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_RUN_RUN_H_
