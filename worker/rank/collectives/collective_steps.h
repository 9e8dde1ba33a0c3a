// Collectives as steps of simpler ones, for every transport: who sends what is decided here, how it moves elsewhere.
#ifndef TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_STEPS_H_
#define TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_STEPS_H_

#include <utility>

#include "worker/rank/collectives/collective_call.h"

namespace tacc::worker {

// An all-gather (kAllGather) as one exchange (kExchange) among all.
CollectiveCall ExchangeOf(const CollectiveCall& call);

// An all-reduce (kAllReduce) as a sum (kReduceScatter) in which every member is sent all of it: one round of messages,
// n - 1 times the bytes.
CollectiveCall SumOfWholes(const CollectiveCall& call);

// An all-reduce as a sum (kReduceScatter) of a piece each, and an all-gather (kAllGather) of the pieces: two rounds of
// messages, 2 (n - 1) / n times the bytes. Pieces are as graph::AllReducePiece says.
std::pair<CollectiveCall, CollectiveCall> PiecesOfAllReduce(const CollectiveCall& call);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_STEPS_H_
