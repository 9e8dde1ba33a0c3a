#include "worker/rank/cuda/collectives/nccl_messages.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "kernels/cuda/collective.h"
#include "worker/rank/cuda/collectives/call_watch.h"
#include "worker/rank/cuda/collectives/group_splits.h"
#include "worker/rank/cuda/device/errors.h"
#include "worker/rank/cuda/device/resources.h"
#include "worker/rank/cuda/device/runs.h"

namespace tacc::worker {
namespace {

using kernels::cuda::Progress;

// NCCL takes tens of microseconds for a group, less than a sleep; what takes longer is slept for.
constexpr absl::Duration kSpin = absl::Microseconds(300);
constexpr absl::Duration kPollInterval = absl::Microseconds(50);
// How long a rank that ends waits for the others to have taken what it sent.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(10);
constexpr int64_t kGreetingBytes = 64;
// A channel's communicator moves one message at a time beside everything else: it need not fill the GPU.
constexpr int kMaxMessageBlocks = 4;
// Of so many every one may be waiting for another rank at once, and leaves room on the GPU and in its hardware queues.
constexpr size_t kMaxChannels = 24;
constexpr size_t kIdWords = sizeof(ncclUniqueId) / sizeof(uint64_t);

// Channel, sender, receiver; of collectives {-1, -1, -1}. In its order ranks connect.
using StreamKey = std::tuple<int64_t, int, int>;
const StreamKey kCollectiveKey = {-1, -1, -1};

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

bool AreSeveralMachines(const Collectives& host) {
  for (int rank = 1; rank < host.world(); ++rank) {
    if (host.machine_of(rank) != host.machine_of(0)) return true;
  }
  return false;
}

absl::StatusOr<ncclDataType_t> NcclType(kernels::DType dtype) {
  switch (dtype) {
    case kernels::DType::kF32:
      return ncclFloat32;
    case kernels::DType::kF64:
      return ncclFloat64;
    case kernels::DType::kBF16:
      return ncclBfloat16;
    case kernels::DType::kF16:
      return ncclFloat16;
    case kernels::DType::kI32:
      return ncclInt32;
    case kernels::DType::kI64:
      return ncclInt64;
    default:
      return absl::UnimplementedError(absl::StrCat("NCCL has no sums of ", kernels::Name(dtype)));
  }
}

// Queues kernels of ours on a stream.
absl::Status QueueOn(cudaStream_t stream, int gpu, const std::function<void()>& kernels) {
  const kernels::cuda::StreamScope scope(stream);
  try {
    kernels();
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("cuda:", gpu, ": ", error.what()));
  }
  return absl::OkStatus();
}

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
  Progress* progress() const { return progress_.host(); }
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
  SharedWords<Progress> progress_;
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

NcclStream::~NcclStream() {
  // Fails only where the context is lost, which has been said then.
  if (stream_ != nullptr) (void)cudaStreamDestroy(stream_);
}

absl::Status NcclStream::Create() {
  const int gpu = owner_.options().gpu;
  TACC_RETURN_IF_CUDA_ERROR(cudaSetDevice(gpu), "choosing the GPU", gpu);
  int lowest = 0, highest = 0;
  TACC_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "the priorities of streams", gpu);
  TACC_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest),
                            "a stream for the talk between ranks", gpu);
  TACC_RETURN_IF_ERROR(followed_.Create(gpu));
  return progress_.Create(gpu);
}

std::vector<int> NcclTalk::Peers() const {
  std::vector<int> peers;
  for (int rank : ranks) {
    if (rank != owner.rank()) peers.push_back(rank);
  }
  return peers;
}

// Memory that is used up is an error of CUDA to NCCL, which says no more of it.
std::string FreeMemoryText(ncclResult_t result) {
  size_t free = 0, total = 0;
  if (result != ncclUnhandledCudaError || cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  return absl::StrCat(", ", free, " of the GPU's ", total, " bytes are free");
}

absl::Status NcclTalk::Error(ncclResult_t result, const std::string& what) const {
  return absl::UnavailableError(absl::StrCat("rank ", owner.rank(), ", NCCL with ", RanksText(Peers()), ": ", what,
                                             ": ", ncclGetErrorString(result), " (", ncclGetLastError(communicator),
                                             FreeMemoryText(result),
                                             "); NCCL_DEBUG=WARN in the worker's environment says more"));
}

absl::Status NcclTalk::CheckConnected() const {
  if (communicator != nullptr) return absl::OkStatus();
  TACC_RETURN_IF_ERROR(owner.Check());
  return absl::InternalError(absl::StrCat("not connected to ", RanksText(Peers())));
}

absl::Status NcclTalk::Check() const {
  if (communicator == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t result = ncclCommGetAsyncError(communicator, &state); result != ncclSuccess)
    return Error(result, "watching");
  return state == ncclSuccess || state == ncclInProgress ? absl::OkStatus() : Error(state, "what was queued");
}

absl::Status NcclTalk::WaitUntilReady(const char* what) const {
  const absl::Duration timeout = owner.options().timeout;
  const absl::Time begin = absl::Now();
  while (true) {
    {
      absl::MutexLock lock(&owner.mutex());
      TACC_RETURN_IF_ERROR(CheckConnected());
      ncclResult_t state = ncclSuccess;
      if (const ncclResult_t result = ncclCommGetAsyncError(communicator, &state); result != ncclSuccess)
        return Error(result, what);
      if (state == ncclSuccess) return absl::OkStatus();
      if (state != ncclInProgress) return Error(state, what);
    }
    const absl::Duration waited = absl::Now() - begin;
    if (waited > timeout) {
      return absl::UnavailableError(absl::StrCat("no answer from ", RanksText(Peers()), " for ",
                                                 absl::FormatDuration(timeout), " in NCCL's ", what));
    }
    if (waited < kSpin) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(kPollInterval);
    }
  }
}

NcclTalk NcclStream::Talk() const { return {owner_, communicator_, ranks_}; }
absl::Status NcclStream::NcclError(ncclResult_t result, const std::string& what) const {
  return Talk().Error(result, what);
}
absl::Status NcclStream::CheckNccl() const { return Talk().Check(); }

absl::Status NcclStream::WaitUntilIdle() {
  const absl::Time begin = absl::Now();
  while (true) {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaSuccess) return absl::OkStatus();
    // Which also takes cudaErrorNotReady off this thread: no later call must find it.
    TACC_RETURN_IF_CUDA_ERROR(error, "the first messages", owner_.options().gpu);
    {
      absl::MutexLock lock(&owner_.mutex());
      TACC_RETURN_IF_ERROR(CheckNccl());
    }
    if (absl::Now() - begin > owner_.options().timeout) {
      return absl::UnavailableError(absl::StrCat("no message to or from ", RanksText(Talk().Peers()),
                                                 " got through for ", absl::FormatDuration(owner_.options().timeout)));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::StatusOr<bool> NcclCommunication::GroupsMayShare() const {
  if (!AreSeveralMachines(*options_.host)) return true;
  int major = 0;
  TACC_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options_.gpu),
                            "the GPU's compute capability", options_.gpu);
  return major < 10;
}

absl::Status NcclStream::Connect(const ncclUniqueId& id, char* greeting) {
  const int me = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), owner_.rank()) - ranks_.begin());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const bool is_channel = greeting != nullptr;
  if (is_channel) config.maxCTAs = kMaxMessageBlocks;
  // Groups are splits of this one. They take its connections and their buffers, of which each would have its own, up to
  // hundreds of MiB. NCCL asks of those who share that no two of them work at once, which one stream for all of them
  // gives, and that none is used when one has been aborted, as Abort takes all. It is the parent's config that counts.
  // Source: ncclConfig_t of NCCL's user guide, splitShare; ncclCommInitChildComm in NCCL's init.cc.
  if (!is_channel) {
    TACC_ASSIGN_OR_RETURN(const bool may_share, owner_.GroupsMayShare());
    config.splitShare = may_share ? 1 : 0;
  }
  {
    absl::MutexLock lock(&owner_.mutex());
    const ncclResult_t result =
        ncclCommInitRankConfig(&communicator_, static_cast<int>(ranks_.size()), id, me, &config);
    if (result != ncclSuccess && result != ncclInProgress) return NcclError(result, "connecting");
  }
  TACC_RETURN_IF_ERROR(Talk().WaitUntilReady("connecting"));
  if (!is_channel) return absl::OkStatus();
  // The first message between two makes the host wait for the other rank, which a later one must not do.
  const int sender = ranks_[0], receiver = ranks_[1];
  TACC_RETURN_IF_ERROR(Begin());
  TACC_RETURN_IF_ERROR(me == 0 ? Send(receiver, greeting, kGreetingBytes) : Receive(sender, greeting, kGreetingBytes));
  return End();
}

absl::Status NcclStream::Begin() {
  if (is_in_group_) return absl::InternalError("a group of messages in another");
  is_in_group_ = true;
  group_.clear();
  return absl::OkStatus();
}

absl::Status NcclStream::Add(int peer, void* data, int64_t bytes, bool is_send) {
  const auto it = std::find(ranks_.begin(), ranks_.end(), peer);
  if (!is_in_group_ || it == ranks_.end() || peer == owner_.rank() || bytes <= 0)
    return absl::InternalError(absl::StrCat("a message of ", bytes, " bytes with rank ", peer, " cannot be here"));
  group_.push_back({static_cast<int>(it - ranks_.begin()), data, bytes, is_send});
  return absl::OkStatus();
}

absl::Status NcclStream::Send(int peer, const void* data, int64_t bytes) {
  return Add(peer, const_cast<void*>(data), bytes, /*is_send=*/true);
}

absl::Status NcclStream::Receive(int peer, void* data, int64_t bytes) {
  return Add(peer, data, bytes, /*is_send=*/false);
}

// All of a group goes to NCCL at once, so that the communicator is not taken away in the middle.
absl::Status NcclStream::End() {
  if (!is_in_group_) return absl::InternalError("a group of messages ends that has not begun");
  is_in_group_ = false;
  if (group_.empty()) return absl::OkStatus();
  {
    absl::MutexLock lock(&owner_.mutex());
    TACC_RETURN_IF_ERROR(Talk().CheckConnected());
    if (const ncclResult_t result = ncclGroupStart(); result != ncclSuccess) return NcclError(result, "a group");
    absl::Status status;
    for (const Entry& entry : group_) {
      const size_t bytes = static_cast<size_t>(entry.bytes);
      const ncclResult_t result = entry.is_send
                                      ? ncclSend(entry.data, bytes, ncclUint8, entry.peer, communicator_, stream_)
                                      : ncclRecv(entry.data, bytes, ncclUint8, entry.peer, communicator_, stream_);
      if (result == ncclSuccess || result == ncclInProgress) continue;
      status = NcclError(result,
                         absl::StrCat(entry.is_send ? "a send to rank " : "a receive from rank ", ranks_[entry.peer]));
      break;
    }
    const ncclResult_t result = ncclGroupEnd();
    TACC_RETURN_IF_ERROR(status);
    if (result != ncclSuccess && result != ncclInProgress) return NcclError(result, "a group of messages");
  }
  // At first it connects the ranks; only then it is queued, and what follows may be.
  return Talk().WaitUntilReady("first messages");
}

ncclComm_t NcclStream::Shared() {
  absl::MutexLock lock(&owner_.mutex());
  return communicator_;
}

absl::Status NcclStream::Split(int color, int key, ncclComm_t* made) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  {
    absl::MutexLock lock(&owner_.mutex());
    TACC_RETURN_IF_ERROR(Talk().CheckConnected());
    const ncclResult_t result = ncclCommSplit(communicator_, color, key, made, &config);
    if (result != ncclSuccess && result != ncclInProgress) return NcclError(result, "making a group");
  }
  // `made` is written when the call is done.
  return Talk().WaitUntilReady("making a group");
}

absl::Status NcclStream::FollowCompute() {
  const int gpu = owner_.options().gpu;
  TACC_RETURN_IF_CUDA_ERROR(cudaEventRecord(followed_.get(), owner_.options().compute), "an event in compute", gpu);
  TACC_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(stream_, followed_.get(), 0), "a stream's wait for compute", gpu);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CommunicationStream::Mark>> NcclStream::CreateMark() {
  auto place = std::make_unique<Place>(this);
  TACC_RETURN_IF_ERROR(place->Create());
  return place;
}

absl::StatusOr<std::unique_ptr<Device::Mark>> NcclStream::CreateTimedMark() {
  return owner_.options().create_timed_mark(stream_);
}

absl::Status NcclStream::Place::Create() { return event_.Create(stream_.owner_.options().gpu); }

absl::Status NcclStream::Place::Set() {
  TACC_RETURN_IF_CUDA_ERROR(cudaEventRecord(event_.get(), stream_.stream_), "an event after a collective",
                            stream_.owner_.options().gpu);
  return absl::OkStatus();
}

absl::Status NcclStream::Place::LetComputeFollow() {
  const NcclOptions& options = stream_.owner_.options();
  TACC_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(options.compute, event_.get(), 0), "compute's wait for a collective",
                            options.gpu);
  return absl::OkStatus();
}

absl::Status NcclStream::Queue(const std::function<void()>& kernels) {
  return QueueOn(stream_, owner_.options().gpu, kernels);
}

absl::Status NcclStream::Pack(const Region& region, int64_t begin, int64_t count, char* flat) {
  return Queue([&] { kernels::cuda::CopyRuns(RunsOf(region), begin, {flat, count, count}, 0, count); });
}

absl::Status NcclStream::Unpack(const char* flat, int64_t begin, int64_t count, const Region& region) {
  return Queue(
      [&] { kernels::cuda::CopyRuns({const_cast<char*>(flat), count, count}, 0, RunsOf(region), begin, count); });
}

absl::Status NcclStream::Copy(const Region& from, const Region& to) {
  if (from.bytes() != to.bytes()) return absl::InternalError("regions of different sizes");
  return Queue([&] { kernels::cuda::CopyRuns(RunsOf(from), 0, RunsOf(to), 0, from.bytes()); });
}

absl::Status NcclStream::Sum(const SumRequest& request) {
  return Queue([&] {
    kernels::cuda::SumInOrder({request.others, request.stride_bytes, request.own, request.me, request.n, request.dtype},
                              request.elements, request.sum, request.sum_dtype);
  });
}

absl::Status NcclStream::BeginCall(const CollectiveCall* call) {
  const uint32_t number = owner_.NumberOf(*call);
  return Queue([&] { kernels::cuda::PublishBegin(number, progress_.on_device()); });
}

absl::Status NcclStream::EndCall() {
  return Queue([&] { kernels::cuda::PublishEnd(progress_.on_device()); });
}

absl::Status NcclGroup::Connect(ncclComm_t communicator) {
  {
    absl::MutexLock lock(&owner_.mutex());
    communicator_ = communicator;
  }
  TACC_RETURN_IF_ERROR(Talk().WaitUntilReady("making a group"));
  absl::MutexLock lock(&owner_.mutex());
  TACC_RETURN_IF_ERROR(Talk().CheckConnected());
  int size = 0, me = 0;
  if (const ncclResult_t result = ncclCommCount(communicator_, &size); result != ncclSuccess)
    return Talk().Error(result, "a group's size");
  if (const ncclResult_t result = ncclCommUserRank(communicator_, &me); result != ncclSuccess)
    return Talk().Error(result, "a group's order");
  if (size == static_cast<int>(ranks_.size()) && me == me_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", owner_.rank(), " is number ", me, " of a group of ", size,
                                          ", but should be ", me_, " among ", RanksText(ranks_)));
}

absl::Status NcclGroup::Queue(const char* what, const std::function<ncclResult_t(ncclComm_t, cudaStream_t)>& call) {
  if (!has_called_) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    TACC_RETURN_IF_CUDA_ERROR(cudaStreamIsCapturing(stream_.stream(), &capture), "a group's first call",
                              owner_.options().gpu);
    if (capture != cudaStreamCaptureStatusNone)
      return absl::InternalError(
          absl::StrCat("the first call among ", RanksText(ranks_), ", in which NCCL connects them, is recorded"));
    has_called_ = true;
  }
  {
    absl::MutexLock lock(&owner_.mutex());
    TACC_RETURN_IF_ERROR(Talk().CheckConnected());
    const ncclResult_t result = call(communicator_, stream_.stream());
    if (result != ncclSuccess && result != ncclInProgress) return Talk().Error(result, what);
  }
  // At first it connects the ranks; only then it is queued, and what follows may be.
  return Talk().WaitUntilReady(what);
}

// The calls of all rows as one.
ncclResult_t InOneLaunch(int64_t rows, const std::function<ncclResult_t(int64_t row)>& call) {
  if (rows == 1) return call(0);
  ncclResult_t result = ncclGroupStart();
  // Within a group a call that is in progress is no reason to leave the others out.
  const auto goes_on = [&] { return result == ncclSuccess || result == ncclInProgress; };
  if (!goes_on()) return result;
  for (int64_t row = 0; row < rows && goes_on(); ++row) result = call(row);
  const ncclResult_t ended = ncclGroupEnd();
  return goes_on() ? ended : result;
}

absl::Status NcclGroup::AllGather(const void* send, void* receive, int64_t bytes, int64_t rows) {
  const auto n = static_cast<int64_t>(ranks_.size());
  return Queue("all-gather", [&](ncclComm_t communicator, cudaStream_t stream) {
    return InOneLaunch(rows, [&](int64_t row) {
      return ncclAllGather(static_cast<const char*>(send) + row * bytes, static_cast<char*>(receive) + row * n * bytes,
                           static_cast<size_t>(bytes), ncclUint8, communicator, stream);
    });
  });
}

absl::Status NcclGroup::ReduceScatter(const void* send, void* receive, int64_t elements, kernels::DType dtype,
                                      int64_t rows) {
  TACC_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(dtype));
  const int64_t n = static_cast<int64_t>(ranks_.size()), bytes = elements * kernels::SizeOf(dtype);
  return Queue("reduce-scatter", [&](ncclComm_t communicator, cudaStream_t stream) {
    return InOneLaunch(rows, [&](int64_t row) {
      return ncclReduceScatter(static_cast<const char*>(send) + row * n * bytes,
                               static_cast<char*>(receive) + row * bytes, static_cast<size_t>(elements), type, ncclSum,
                               communicator, stream);
    });
  });
}

absl::Status NcclGroup::AllReduce(const void* send, void* receive, int64_t elements, kernels::DType dtype) {
  TACC_ASSIGN_OR_RETURN(const ncclDataType_t type, NcclType(dtype));
  return Queue("all-reduce", [&](ncclComm_t communicator, cudaStream_t stream) {
    return ncclAllReduce(send, receive, static_cast<size_t>(elements), type, ncclSum, communicator, stream);
  });
}

absl::Status NcclCommunication::EnterCall(uint32_t call) {
  current_call_ = call;
  return QueueOn(options_.compute, options_.gpu, [&] { kernels::cuda::PublishPlace(call, place_.on_device()); });
}

absl::StatusOr<std::unique_ptr<Arena>> NcclCommunication::AllocateStaging(int64_t num_bytes) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Arena> memory, options_.device->AllocateDevice(num_bytes));
  // Its zeros may have been queued where no stream of these waits.
  TACC_RETURN_IF_ERROR(options_.device->Synchronize());
  return memory;
}

absl::StatusOr<NcclStream*> NcclCommunication::FindStream(const StreamKey& key, std::vector<int> ranks) {
  std::unique_ptr<NcclStream>& stream = streams_[key];
  if (stream == nullptr) {
    auto made = std::make_unique<NcclStream>(this, std::move(ranks));
    TACC_RETURN_IF_ERROR(made->Create());
    stream = std::move(made);
  }
  return stream.get();
}

absl::StatusOr<CommunicationStream*> NcclCommunication::CollectiveStream() {
  std::vector<int> ranks(options_.host->world());
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  return FindStream(kCollectiveKey, std::move(ranks));
}

absl::StatusOr<GroupCollectives*> NcclCommunication::Group(const std::vector<int>& members) {
  TACC_RETURN_IF_ERROR(CollectiveStream().status());
  const auto me = std::find(members.begin(), members.end(), rank());
  if (me == members.end())
    return absl::InternalError(absl::StrCat("rank ", rank(), " asks for a group of ", RanksText(members)));
  std::unique_ptr<NcclGroup>& group = groups_[members];
  if (group == nullptr)
    group = std::make_unique<NcclGroup>(this, streams_[kCollectiveKey].get(), members,
                                        static_cast<int>(me - members.begin()));
  return group.get();
}

absl::StatusOr<CommunicationStream*> NcclCommunication::MessageStream(uint32_t channel, int from, int to) {
  if (from == to || (from != rank() && to != rank()))
    return absl::InternalError(absl::StrCat("rank ", rank(), " has no message from ", from, " to ", to));
  return FindStream({channel, from, to}, {from, to});
}

// Makes an id for each channel that this rank sends on, rank 0 one for collectives, and returns all ranks'.
absl::StatusOr<std::map<StreamKey, ncclUniqueId>> NcclCommunication::ExchangeIds() {
  std::vector<std::pair<StreamKey, ncclUniqueId>> mine;
  ncclResult_t result = ncclSuccess;
  const auto make = [&](const StreamKey& key) {
    ncclUniqueId id;
    if (result == ncclSuccess) result = ncclGetUniqueId(&id);
    mine.emplace_back(key, id);
  };
  if (rank() == 0) make(kCollectiveKey);
  for (const auto& [key, stream] : streams_) {
    if (key != kCollectiveKey && std::get<1>(key) == rank()) make(key);
  }
  Collectives& host = *options_.host;
  TACC_ASSIGN_OR_RETURN(const auto counts, host.GatherHost({mine.size(), static_cast<uint64_t>(result)}));
  uint64_t most = 0;
  for (size_t r = 0; r < counts.size(); ++r) {
    most = std::max(most, counts[r][0]);
    if (counts[r][1] != ncclSuccess) {
      return absl::UnavailableError(
          absl::StrCat("rank ", r, " cannot use NCCL: ", ncclGetErrorString(static_cast<ncclResult_t>(counts[r][1]))));
    }
  }
  constexpr size_t kEntryWords = 3 + kIdWords;
  std::vector<uint64_t> words(most * kEntryWords);
  for (size_t i = 0; i < mine.size(); ++i) {
    const auto& [channel, from, to] = mine[i].first;
    uint64_t* entry = words.data() + i * kEntryWords;
    entry[0] = static_cast<uint64_t>(channel);
    entry[1] = static_cast<uint64_t>(static_cast<int64_t>(from));
    entry[2] = static_cast<uint64_t>(static_cast<int64_t>(to));
    std::memcpy(entry + 3, &mine[i].second, sizeof(ncclUniqueId));
  }
  TACC_ASSIGN_OR_RETURN(const auto all, host.GatherHost(words));
  std::map<StreamKey, ncclUniqueId> ids;
  for (size_t r = 0; r < all.size(); ++r) {
    for (uint64_t i = 0; i < counts[r][0]; ++i) {
      const uint64_t* entry = all[r].data() + i * kEntryWords;
      ncclUniqueId& id = ids[{static_cast<int64_t>(entry[0]), static_cast<int>(static_cast<int64_t>(entry[1])),
                              static_cast<int>(static_cast<int64_t>(entry[2]))}];
      std::memcpy(&id, entry + 3, sizeof(id));
    }
  }
  return ids;
}

absl::Status NcclCommunication::Connect() {
  const int gpu = options_.gpu;
  TACC_RETURN_IF_CUDA_ERROR(cudaSetDevice(gpu), "choosing the GPU", gpu);
  // Every rank is in it, whether it has collectives or not.
  TACC_RETURN_IF_ERROR(CollectiveStream().status());
  if (const size_t channels = streams_.size() - 1; channels > kMaxChannels) {
    return absl::UnimplementedError(
        absl::StrCat("rank ", rank(), " has ", channels, " channels of messages; more than ", kMaxChannels,
                     " might wait for each other on the GPU. Use fewer parts of a stage on each rank (dist.pp)"));
  }
  TACC_RETURN_IF_ERROR(place_.Create(gpu));
  TACC_ASSIGN_OR_RETURN(const auto ids, ExchangeIds());
  TACC_ASSIGN_OR_RETURN(greeting_, AllocateStaging(kGreetingBytes));
  // One after the other in an order that all ranks share: none waits for another in a circle.
  for (const auto& [key, stream] : streams_) {
    const auto id = ids.find(key);
    if (id == ids.end()) {
      const auto& [channel, from, to] = key;
      return absl::InternalError(absl::StrCat("rank ", rank(), " receives from rank ", from, " on channel ", channel,
                                              ", which sends nothing"));
    }
    TACC_RETURN_IF_ERROR(stream->Connect(id->second, key == kCollectiveKey ? nullptr : greeting_->data()));
  }
  TACC_RETURN_IF_ERROR(ConnectGroups());
  for (const auto& [key, stream] : streams_) {
    TACC_RETURN_IF_ERROR(stream->WaitUntilIdle());
    watch_.AddQueue(stream->progress());
  }
  // What NCCL has tried and done without, as access to a neighbour's memory: the next kernel is not to be blamed for
  // it.
  (void)cudaGetLastError();
  watch_.Show(options_.status, place_.host());
  watch_.Start([this] { return CheckNccl(); }, [this] { Abort(); });
  is_connected_ = true;
  return absl::OkStatus();
}

// Splits of the communicator of all ranks, which every rank takes part in (AgreeOnSplits).
absl::Status NcclCommunication::ConnectGroups() {
  NcclStream& world = *streams_[kCollectiveKey];
  std::vector<std::vector<int>> to_split;
  for (const auto& [members, group] : groups_) {
    if (static_cast<int>(members.size()) == options_.host->world()) {
      TACC_RETURN_IF_ERROR(group->Connect(world.Shared()));
    } else {
      to_split.push_back(members);
    }
  }
  const auto gather = [this](const std::vector<uint64_t>& words) { return options_.host->GatherHost(words); };
  TACC_ASSIGN_OR_RETURN(const auto splits, AgreeOnSplits(rank(), to_split, gather));
  for (const std::vector<int>& members : splits) {
    NcclGroup* const group = members.empty() ? nullptr : groups_.at(members).get();
    ncclComm_t* const made = &made_.emplace_back(nullptr);
    TACC_RETURN_IF_ERROR(
        world.Split(group == nullptr ? NCCL_SPLIT_NOCOLOR : members[0], group == nullptr ? 0 : group->me(), made));
    if (group != nullptr) TACC_RETURN_IF_ERROR(group->Connect(*made));
  }
  return absl::OkStatus();
}

absl::Status NcclCommunication::CheckNccl() {
  absl::MutexLock lock(&mutex_);
  absl::Status status;
  for (const auto& [key, stream] : streams_) status.Update(stream->CheckNccl());
  for (const auto& [members, group] : groups_) status.Update(group->CheckNccl());
  return status;
}

std::vector<ncclComm_t> NcclCommunication::TakeAll() {
  std::vector<ncclComm_t> communicators;
  const auto add = [&](ncclComm_t communicator) {
    // A group of all ranks shares the stream's.
    if (communicator != nullptr &&
        std::find(communicators.begin(), communicators.end(), communicator) == communicators.end())
      communicators.push_back(communicator);
  };
  for (const auto& [members, group] : groups_) add(group->Take());
  for (ncclComm_t& made : made_) add(std::exchange(made, nullptr));
  for (const auto& [key, stream] : streams_) add(stream->Take());
  return communicators;
}

void NcclCommunication::Abort() {
  std::vector<ncclComm_t> communicators;
  {
    absl::MutexLock lock(&mutex_);
    communicators = TakeAll();
  }
  if (communicators.empty()) return;
  // In one group: all that waits on the GPU is told to end before NCCL frees the memory of any, which waits for
  // everything on the GPU. Of the communicators that recordings name NCCL frees it when those are gone. The error has
  // been said; what aborting may add says nothing more.
  (void)ncclGroupStart();
  for (ncclComm_t communicator : communicators) (void)ncclCommAbort(communicator);
  (void)ncclGroupEnd();
}

// Where nothing failed each communicator ends in order: the other ranks have what this one sent.
NcclCommunication::~NcclCommunication() {
  watch_.Stop();
  if (!is_connected_) {
    Abort();
    return;
  }
  const absl::Time deadline = absl::Now() + kFinalizeTimeout;
  std::vector<ncclComm_t> communicators;
  {
    absl::MutexLock lock(&mutex_);
    communicators = TakeAll();
  }
  for (ncclComm_t communicator : communicators) {
    ncclResult_t state = ncclCommFinalize(communicator);
    while (state == ncclInProgress && absl::Now() < deadline) {
      absl::SleepFor(kPollInterval);
      if (const ncclResult_t result = ncclCommGetAsyncError(communicator, &state); result != ncclSuccess)
        state = result;
    }
    (void)(state == ncclSuccess ? ncclCommDestroy(communicator) : ncclCommAbort(communicator));
  }
}

}  // namespace

absl::StatusOr<GpuId> GpuIdOf(int gpu) {
  cudaDeviceProp properties;
  TACC_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, gpu), "the GPU's properties", gpu);
  GpuId id;
  static_assert(sizeof(id) == sizeof(properties.uuid));
  std::memcpy(id.data(), &properties.uuid, sizeof(id));
  return id;
}

absl::StatusOr<std::unique_ptr<Communication>> CreateNcclCommunication(const NcclOptions& options) {
  // Between machines NCCL 2.28 may hang for good, without an error, on gathers that are replayed: of a buffer that it
  // has registered with the network for a recording, the receiver erases the flag by which the kernel tells it to
  // begin, when tiny gathers go before large ones on one connection. NCCL reads this when it is first called. Source:
  // github.com/NVIDIA/nccl/issues/2389.
  if (AreSeveralMachines(*options.host)) setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  return std::make_unique<NcclCommunication>(options);
}

}  // namespace tacc::worker
