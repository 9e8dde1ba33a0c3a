// The parts of NCCL's talk between ranks (nccl_messages.h): its communicators, as streams of messages and as groups.
#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_NCCL_COMMUNICATION_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_NCCL_COMMUNICATION_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/cuda/collective.h"
#include "worker/rank/cuda/collectives/call_watch.h"
#include "worker/rank/cuda/collectives/communication.h"
#include "worker/rank/cuda/collectives/nccl_messages.h"
#include "worker/rank/cuda/device/resources.h"

namespace tacc::worker {

// What takes longer than a short spin is slept for, so long at a time.
inline constexpr absl::Duration kNcclPollInterval = absl::Microseconds(50);
// Bytes that go through each channel when it is connected.
inline constexpr int64_t kNcclGreetingBytes = 64;

class NcclCommunication;

// What goes by one communicator, as errors say it.
struct NcclTalk {
  NcclCommunication& owner;
  const ncclComm_t& communicator;  // Guarded by the owner's mutex.
  const std::vector<int>& ranks;

  std::vector<int> Peers() const;
  absl::Status Error(ncclResult_t result, const std::string& what) const;
  // With the owner's mutex held: the communicator is there; else why not.
  absl::Status CheckConnected() const;
  // With the owner's mutex held: the error that NCCL reports.
  absl::Status Check() const;
  // Returns when NCCL has done on the host what it was asked for, which `what` names in errors.
  absl::Status WaitUntilReady(const char* what) const;
};

// Queues kernels of ours on a stream.
absl::Status QueueOn(cudaStream_t stream, int gpu, const std::function<void()>& kernels);

// Whether the ranks are on more than one machine.
bool AreSeveralMachines(const Collectives& host);

// A CUDA stream with a communicator of `ranks`, ascending or {sender, receiver}.
class NcclStream : public CommunicationStream, public GroupedMessages {
 public:
  NcclStream(NcclCommunication* owner, std::vector<int> ranks) : owner_(*owner), ranks_(std::move(ranks)) {}
  ~NcclStream() override;
  absl::Status Create();

  // Before the first group, in the order of StreamKey on all ranks: `id` is the same on all of the stream's.
  absl::Status Connect(const ncclUniqueId& id, char* greeting);
  // Of a communicator of all ranks, on all of them: one of those that give the same color, ordered by key, or null.
  // NCCL may write to `made` after an error too.
  absl::Status Split(int color, int key, ncclComm_t* made);

  GroupedMessages& messages() override { return *this; }
  absl::Status Begin() override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override;
  absl::Status Receive(int peer, void* data, int64_t bytes) override;
  absl::Status End() override;

  absl::Status FollowCompute() override;
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override;
  absl::StatusOr<std::unique_ptr<Device::Mark>> CreateTimedMark() override;
  absl::Status Pack(const Region& region, int64_t begin, int64_t count, char* flat) override;
  absl::Status Unpack(const char* flat, int64_t begin, int64_t count, const Region& region) override;
  absl::Status Copy(const Region& from, const Region& to) override;
  absl::Status Sum(const SumRequest& request) override;
  absl::Status BeginCall(const CollectiveCall* call) override;
  absl::Status EndCall() override;

  // Returns when all that has been queued here is done.
  absl::Status WaitUntilIdle();
  kernels::cuda::Progress* progress() const { return progress_.host(); }
  // With the owner's mutex held: the error that NCCL reports.
  absl::Status CheckNccl() const;
  // Takes the communicator away, with the owner's mutex held.
  ncclComm_t Take() { return std::exchange(communicator_, nullptr); }
  // The communicator, for a group of the same ranks.
  ncclComm_t Shared();
  cudaStream_t stream() const { return stream_; }

 private:
  struct Entry {
    int peer;  // Its number in ranks_.
    void* data;
    int64_t bytes;
    bool is_send;
  };

  class Place : public Mark {
   public:
    explicit Place(NcclStream* stream) : stream_(*stream) {}
    absl::Status Create();
    absl::Status Set() override;
    absl::Status LetComputeFollow() override;

   private:
    NcclStream& stream_;
    Event event_;
  };

  absl::Status Add(int peer, void* data, int64_t bytes, bool is_send);
  absl::Status Queue(const std::function<void()>& kernels);
  NcclTalk Talk() const;
  absl::Status NcclError(ncclResult_t result, const std::string& what) const;

  NcclCommunication& owner_;
  const std::vector<int> ranks_;
  cudaStream_t stream_ = nullptr;
  Event followed_;
  ncclComm_t communicator_ = nullptr;  // Guarded by the owner's mutex.
  bool is_in_group_ = false;
  std::vector<Entry> group_;
  SharedWords<kernels::cuda::Progress> progress_;
};

// A communicator of some of the ranks, on the queue of collectives.
class NcclGroup : public GroupCollectives {
 public:
  NcclGroup(NcclCommunication* owner, NcclStream* stream, std::vector<int> ranks, int me)
      : owner_(*owner), stream_(*stream), ranks_(std::move(ranks)), me_(me) {}

  absl::Status AllGather(const void* send, void* receive, int64_t bytes, int64_t rows) override;
  absl::Status ReduceScatter(const void* send, void* receive, int64_t elements, kernels::DType dtype,
                             int64_t rows) override;
  absl::Status AllReduce(const void* send, void* receive, int64_t elements, kernels::DType dtype) override;

  int me() const { return me_; }
  // The communicator, by a split or, of all ranks, the stream's own. Errors: Internal: it has other members.
  absl::Status Connect(ncclComm_t communicator);
  // With the owner's mutex held.
  absl::Status CheckNccl() const { return Talk().Check(); }
  ncclComm_t Take() { return std::exchange(communicator_, nullptr); }

 private:
  NcclTalk Talk() const { return {owner_, communicator_, ranks_}; }
  absl::Status Queue(const char* what, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call);

  NcclCommunication& owner_;
  NcclStream& stream_;
  const std::vector<int> ranks_;
  const int me_;
  ncclComm_t communicator_ = nullptr;  // Guarded by the owner's mutex.
  bool has_called_ = false;
};

// All of them, and the thread that watches.
class NcclCommunication : public Communication {
 public:
  explicit NcclCommunication(const NcclOptions& options)
      : options_(options), watch_(options.host->rank(), options.timeout) {}
  ~NcclCommunication() override;

  int rank() const override { return options_.host->rank(); }
  int machine_of(int rank) const override { return options_.host->machine_of(rank); }
  absl::StatusOr<std::unique_ptr<Arena>> AllocateStaging(int64_t num_bytes) override;
  absl::StatusOr<CommunicationStream*> CollectiveStream() override;
  absl::StatusOr<GroupCollectives*> Group(const std::vector<int>& members) override;
  absl::StatusOr<CommunicationStream*> MessageStream(uint32_t channel, int from, int to) override;
  absl::Status Connect() override;
  absl::Status EnterCall(uint32_t call) override;
  absl::Status Check() override { return watch_.Check(); }
  CollectiveProgress Progress() const override { return watch_.Progress(); }

  const NcclOptions& options() const { return options_; }
  // Whether groups may take the buffers of the communicator of all ranks. On Blackwell NCCL has more channels by the
  // switches of NVLink between machines than inside one, and a group of one machine that uses them first makes buffers
  // for fewer than the others then use. Source: nvls.cc of NCCL 2.27 and 2.28; github.com/NVIDIA/nccl/issues/2430.
  absl::StatusOr<bool> GroupsMayShare() const;
  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }
  // Of the call, as it is queued now.
  uint32_t NumberOf(const CollectiveCall& call) { return watch_.NumberOf(call, current_call_); }

 private:
  // Channel, sender, receiver; of collectives {-1, -1, -1}. In its order ranks connect.
  using StreamKey = std::tuple<int64_t, int, int>;

  absl::StatusOr<NcclStream*> FindStream(const StreamKey& key, std::vector<int> ranks);
  absl::StatusOr<std::map<StreamKey, ncclUniqueId>> ExchangeIds();
  absl::Status ConnectGroups();
  absl::Status CheckNccl();
  // Takes each communicator away once, those of groups first.
  std::vector<ncclComm_t> TakeAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Abort();

  const NcclOptions options_;
  absl::Mutex mutex_;                                              // Of the communicators.
  std::map<StreamKey, std::unique_ptr<NcclStream>> streams_;       // Changed before Connect only.
  std::map<std::vector<int>, std::unique_ptr<NcclGroup>> groups_;  // By members; as streams_.
  std::deque<ncclComm_t> made_;                                    // Where NCCL writes what it makes of splits.
  std::unique_ptr<Arena> greeting_;                                // Sent and received once by each channel.
  SharedWords<uint32_t> place_;
  uint32_t current_call_ = 0;
  bool is_connected_ = false;
  CallWatch watch_;  // Ends first.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_NCCL_COMMUNICATION_H_
