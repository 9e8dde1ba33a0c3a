#ifndef TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_ENGINE_H_
#define TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_ENGINE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/collective_limits.h"
#include "worker/rank/collectives/collective_call.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/collectives/two_levels.h"

namespace tacc::worker {

// Runs one call on the thread that asks, over a Transport. Every message of a call has at most ChunkBytes, whichever
// way its two sides lie in memory, so that both sides cut alike. One thread at a time uses the object.
class CollectiveEngine {
 public:
  static constexpr int64_t kStagingBytes = 8 << 20;
  using Messages = std::vector<std::unique_ptr<Message>>;

  CollectiveEngine() : staging_(std::make_unique_for_overwrite<char[]>(kStagingBytes)) {}
  // As Collectives::Connect.
  void Connect(Transport* transport);
  int machine_of(int rank) const { return transport_ == nullptr ? 0 : transport_->machine_of(rank); }

  // Blocks until the call has ended, which is no message.
  absl::Status Execute(const CollectiveCall& call);

  // Starts a message; it has ended when what is returned has.
  absl::StatusOr<std::unique_ptr<Message>> Post(const CollectiveCall& call);

  // True for an exchange that needs no staging: several may be under way at once.
  bool IsPlain(const CollectiveCall& call) const;
  // Starts what is plain; it has ended when the messages have.
  absl::Status Begin(const CollectiveCall& call, Messages& messages);

  // Waits until all have ended, and forgets them.
  static absl::Status WaitAll(Messages& messages);

  int64_t bytes_sent() const { return bytes_sent_; }

 private:
  // The largest that an all-reduce of which everyone is sent all may be.
  static constexpr int64_t kSmallAllReduceBytes = graph::kMaxWholeAllReduceElements * int64_t{sizeof(double)};

  static bool IsContiguous(const CollectiveCall& call);
  std::optional<TwoLevels> LevelsOf(const CollectiveCall& call) const;

  // For each member two chunks received and one packed to send; then the own chunk and the sum.
  static int64_t ChunkBytes(size_t num_members);
  absl::Status Send(int peer, const char* data, int64_t bytes, Messages& messages);
  absl::Status Receive(int peer, char* data, int64_t bytes, Messages& messages);
  // Posts the messages between contiguous memory, all at once, and copies the own part.
  absl::Status PostContiguous(const CollectiveCall& call, Messages& messages);
  absl::Status Exchange(const CollectiveCall& call);
  absl::Status AllGather(const CollectiveCall& call);
  absl::Status ReduceScatter(const CollectiveCall& call);
  // In rounds of a chunk of each part. Within the machine: what this rank's place on each machine is sent, from mates;
  // between machines: their sums, from peers.
  absl::Status ReduceScatter(const CollectiveCall& call, const TwoLevels& levels);
  // `to` = the sum of `parts` in their order, by way of `sum`, which is another place than all of them; of `elements`.
  static void SumInOrder(kernels::DType dtype, const std::vector<const char*>& parts, int64_t elements, char* sum,
                         kernels::DType to_dtype, char* to);
  // Of few elements: all have all of a level.
  absl::Status SmallAllReduce(const CollectiveCall& call, const TwoLevels& levels);
  absl::Status AllReduce(const CollectiveCall& call);
  // Slot `slot` of the staging, in slots of `chunk` bytes.
  char* Stage(int slot, int64_t chunk) const { return staging_.get() + slot * chunk; }

  Transport* transport_ = nullptr;
  bool has_machines_ = false;  // More than one.
  std::unique_ptr<char[]> staging_;
  alignas(64) char small_sum_[kSmallAllReduceBytes];  // Of a machine's ranks.
  int64_t bytes_sent_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_COLLECTIVE_ENGINE_H_
