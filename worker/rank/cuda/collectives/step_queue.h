// The steps of a collective on a device's queue.
#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_STEP_QUEUE_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_STEP_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "worker/rank/collectives/collective_call.h"
#include "worker/rank/collectives/two_levels.h"
#include "worker/rank/cuda/collectives/communication.h"

namespace tacc::worker {

// One of the steps that a collective on a device comes to: the library's collectives, exchanges, sums of what is sent
// to this rank, messages.
struct CollectiveStep {
  CollectiveCall call;
  std::optional<TwoLevels> levels;    // Of a sum; of an all-reduce, which is then a small one.
  GroupCollectives* group = nullptr;  // Whose collective it is; null: of messages.
};

// Queues steps on a device. Messages are cut into chunks of which the staging holds three for each member of the group
// and two more, so that both sides cut alike however their regions lie.
class StepQueue {
 public:
  // `staging_bytes`: the most that a step may take; the same on all ranks.
  explicit StepQueue(int64_t staging_bytes) : staging_bytes_(staging_bytes) {}

  // Bytes of a chunk among so many members.
  int64_t ChunkBytes(size_t num_members) const;
  // Staging that Add needs for the step.
  int64_t StagingBytes(const CollectiveStep& step) const;

  // Queues the step. `staging`: StagingBytes of the device's memory, for the step alone until it is done; null for
  // none. Waits for nothing.
  absl::Status Add(const CollectiveStep& step, char* staging, CommunicationStream& stream) const;

 private:
  int64_t SlotBytes(const CollectiveCall& call) const;
  absl::Status OneMessage(const CollectiveCall& call, CommunicationStream& stream) const;
  absl::Status Exchange(const CollectiveCall& call, char* staging, CommunicationStream& stream) const;
  absl::Status ReduceScatter(const CollectiveCall& call, char* staging, CommunicationStream& stream) const;
  absl::Status ReduceScatter(const CollectiveCall& call, const TwoLevels& levels, char* staging,
                             CommunicationStream& stream) const;
  absl::Status SmallAllReduce(const CollectiveCall& call, const TwoLevels& levels, char* staging,
                              CommunicationStream& stream) const;
  absl::Status AllGather(const CollectiveCall& call, GroupCollectives& group, char* staging,
                         CommunicationStream& stream) const;
  absl::Status ReduceScatter(const CollectiveCall& call, GroupCollectives& group, char* staging,
                             CommunicationStream& stream) const;

  const int64_t staging_bytes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_STEP_QUEUE_H_
