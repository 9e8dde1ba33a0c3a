#ifndef TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_CALL_H_
#define TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_CALL_H_

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {

// One collective, bound: what this rank sends to and takes from whom. Made once per node by BindCollective.
struct CollectiveCall {
  enum class Kind {
    kExchange,       // send[i] goes to members[i], receive[i] is filled by it
    kAllGather,      // send[0] goes to all members, receive[i] is filled by members[i]
    kReduceScatter,  // send[i] goes to members[i]; the sum of what the members sent to this rank goes to receive[0]
    kAllReduce,      // the sum of the members' send[0] goes to receive[0]; both contiguous, the same place or apart
    kSend,           // send[0], contiguous, to members[0] on `channel`
    kReceive,        // receive[0], contiguous, from members[0] on `channel`
  };
  Kind kind = Kind::kExchange;
  bool is_message() const { return kind == Kind::kSend || kind == Kind::kReceive; }
  std::vector<int> members;  // Ranks, ascending, this one among them.
  int me = 0;                // This rank's index in members.
  uint32_t channel = 0;      // Messages on one channel between two ranks keep their order.
  uint32_t node = 0;         // Index of its node in the graph, for reports of hangs.
  // Members run different programs, in which the node has other indices.
  bool across_stages = false;
  // Empty regions (no bytes) move nothing. This rank's part of its own is a local copy, or nothing where both sides are
  // the same memory. The memory must stay until the collective has been waited for.
  std::vector<Region> send;
  std::vector<Region> receive;
  // Types of the elements sent and of a sum's result. Sums are kept in f32 (f64 for f64, integers in their own type).
  kernels::DType send_dtype = kernels::DType::kF32;
  kernels::DType receive_dtype = kernels::DType::kF32;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_CALL_H_
