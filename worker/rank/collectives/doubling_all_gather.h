#ifndef TACC_WORKER_RANK_COLLECTIVES_DOUBLING_ALL_GATHER_H_
#define TACC_WORKER_RANK_COLLECTIVES_DOUBLING_ALL_GATHER_H_

#include <cstdint>
#include <vector>

#include "worker/rank/collectives/collective_call.h"

namespace tacc::worker {

// A small all-gather in rounds that double what each member has: a rank sends as many bytes as in one round to all, but
// log2(n) messages, rounded up, and not n - 1. Ranks agree on small things at each step, so in a world of 1,024 each of
// them would handle 1,023 messages out and in, where it handles 10. Source: Bruck et al., "Efficient Algorithms for
// All-to-All Communications in Multiport Message-Passing Systems", IEEE TPDS 8(11), 1997, section 4.
//
// It is taken by groups of 32 and more, where it takes a third of the time over TCP when ranks share processors; a
// round costs some 50 us where they do not.
inline constexpr int kLeastDoublingMembers = 32;
// All blocks together, at most: from where on bytes count, between machines too.
inline constexpr int64_t kMostDoublingBytes = 16 << 10;

// Whether the all-gather is done so; the same on all of its members. Blocks are equal.
bool GathersByDoubling(const CollectiveCall& call);

// The rounds, as exchanges (kExchange) one after the other. `blocks`: room for what is gathered, which holds this
// member's block first before they begin; and in the end the block of the k-th member after this one, in a circle, as
// k-th.
std::vector<CollectiveCall> DoublingRounds(const CollectiveCall& call, char* blocks);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_DOUBLING_ALL_GATHER_H_
