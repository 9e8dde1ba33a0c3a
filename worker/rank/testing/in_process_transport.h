#ifndef TACC_WORKER_RANK_TESTING_IN_PROCESS_TRANSPORT_H_
#define TACC_WORKER_RANK_TESTING_IN_PROCESS_TRANSPORT_H_

#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "worker/rank/collectives/transport.h"

namespace tacc::worker {

// `world` ranks that are threads of this process: messages are copied from the sender's memory. For tests of anything
// above Transport. A Wait that lasts longer than `timeout` fails, as it would between processes. Each machine has
// `ranks_a_machine` of them in order, the last one perhaps less; 0: all share one.
std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int world, absl::Duration timeout,
                                                                int ranks_a_machine = 0);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TESTING_IN_PROCESS_TRANSPORT_H_
