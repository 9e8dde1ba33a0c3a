// What collectives on a device run on: queues of the device, messages in groups, the library's collectives. NCCL's is
// nccl_messages.h; tests have testing/simulated_communication.h.
#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_COMMUNICATION_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_COMMUNICATION_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {

// Messages between devices, queued in groups: those between Begin and End are under way together, and the group is done
// when all of them are. The k-th group in which rank a has messages for or from rank b meets the k-th of b for a, and
// must have the same messages in the same order and of the same sizes.
class GroupedMessages {
 public:
  virtual ~GroupedMessages() = default;
  virtual absl::Status Begin() = 0;
  // `bytes` > 0, of the device's memory; `peer` is another rank.
  virtual absl::Status Send(int peer, const void* data, int64_t bytes) = 0;
  virtual absl::Status Receive(int peer, void* data, int64_t bytes) = 0;
  virtual absl::Status End() = 0;
};

// Collectives of the device's own library among the ranks of a group, on the queue of collectives; memory is the
// device's. All ranks of the group make the same calls in the same order, with the same sizes. Sums are in an order of
// the library's and rounded to their type on the way, but the same bits on every rank. Memory that is sent and memory
// that is filled do not overlap, but where it is said.
class GroupCollectives {
 public:
  virtual ~GroupCollectives() = default;
  // The members' `bytes` to `receive`, in their order; `send` may be this rank's place there. Of `rows` above 1 so many
  // at once, which lie one behind the other in `send` and in `receive`.
  virtual absl::Status AllGather(const void* send, void* receive, int64_t bytes, int64_t rows) = 0;
  // Of the members' parts for each rank of the group, `elements` each, the sum of those for this one; `receive` may be
  // this rank's place in `send`. `rows` as above.
  virtual absl::Status ReduceScatter(const void* send, void* receive, int64_t elements, kernels::DType dtype,
                                     int64_t rows) = 0;
  // `receive` may be `send`.
  virtual absl::Status AllReduce(const void* send, void* receive, int64_t elements, kernels::DType dtype) = 0;
};

// A queue of a device beside the one that its kernels go to ("compute", Device's). What is queued on one is done in
// order, and comes after what is queued on the other only where that is said.
class CommunicationStream {
 public:
  virtual ~CommunicationStream() = default;

  // On this queue.
  virtual GroupedMessages& messages() = 0;

  // What this queue is given from now on comes after what compute has been given so far.
  virtual absl::Status FollowCompute() = 0;
  // A place in this queue.
  class Mark {
   public:
    virtual ~Mark() = default;
    // The place is here.
    virtual absl::Status Set() = 0;
    // What compute is given from now on comes after the place as set last.
    virtual absl::Status LetComputeFollow() = 0;
  };
  virtual absl::StatusOr<std::unique_ptr<Mark>> CreateMark() = 0;
  // A place in this queue whose time counts with those of the device's marks. Not to be set while recording.
  virtual absl::StatusOr<std::unique_ptr<Device::Mark>> CreateTimedMark() = 0;

  // Queued: as the functions of region.h, on the device's memory.
  virtual absl::Status Pack(const Region& region, int64_t begin, int64_t count, char* flat) = 0;
  virtual absl::Status Unpack(const char* flat, int64_t begin, int64_t count, const Region& region) = 0;
  virtual absl::Status Copy(const Region& from, const Region& to) = 0;
  // Queued: `sum` = the elements of n summands added in their order in f32 (f64 for f64, integers exactly) and rounded
  // once; the summand `me` lies at `own`, summand k elsewise at `others` + k * stride_bytes. `sum` may be `own`.
  struct SumRequest {
    const char* others = nullptr;
    int64_t stride_bytes = 0;
    const char* own = nullptr;
    int me = 0;
    int n = 0;
    kernels::DType dtype = kernels::DType::kF32;
    int64_t elements = 0;
    char* sum = nullptr;
    kernels::DType sum_dtype = kernels::DType::kF32;
  };
  virtual absl::Status Sum(const SumRequest& request) = 0;

  // Queued: `call` has begun, and has ended; for whoever watches that ranks answer in time.
  virtual absl::Status BeginCall(const CollectiveCall* call) = 0;
  virtual absl::Status EndCall() = 0;
};

// A device's part in the talk between ranks.
class Communication {
 public:
  virtual ~Communication() = default;
  virtual int rank() const = 0;
  // As Transport's.
  virtual int machine_of(int rank) const = 0;
  // Bytes of the device's memory; they need not be zeros.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateStaging(int64_t num_bytes) = 0;
  // The queue of collectives, and one for the messages on `channel` from one rank to another, of which this is one:
  // what waits in one holds up no other. The same object for the same channel and ranks. Before Connect.
  virtual absl::StatusOr<CommunicationStream*> CollectiveStream() = 0;
  // The library's collectives on that queue, among `members`: ranks, ascending, this one among them.
  // The same object for the same members. Groups may overlap; each is asked for by all of its members. Before Connect.
  virtual absl::StatusOr<GroupCollectives*> Group(const std::vector<int>& members) = 0;
  virtual absl::StatusOr<CommunicationStream*> MessageStream(uint32_t channel, int from, int to) = 0;
  // Connects the queues that have been asked for. All ranks call it; returns when all are connected. Unavailable: a
  // rank did not answer in time.
  virtual absl::Status Connect() = 0;
  // Queued on compute: what follows is of the program's call number `call`; as BeginCall, for whoever watches.
  virtual absl::Status EnterCall(uint32_t call) = 0;
  // The first error since: Unavailable names the ranks of the call that was not answered in time.
  virtual absl::Status Check() = 0;
  // How far the queues are. On any thread.
  virtual CollectiveProgress Progress() const = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_COMMUNICATION_H_
