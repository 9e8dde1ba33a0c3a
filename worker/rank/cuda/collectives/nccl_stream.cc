#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/cuda/collectives/nccl_communication.h"
#include "worker/rank/cuda/device/errors.h"
#include "worker/rank/cuda/device/runs.h"

namespace tacc::worker {
namespace {

using kernels::cuda::Progress;

// A channel's communicator moves one message at a time beside everything else: it need not fill the GPU.
constexpr int kMaxMessageBlocks = 4;

}  // namespace

NcclTalk NcclStream::Talk() const { return {owner_, communicator_, ranks_}; }

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
    absl::SleepFor(kNcclPollInterval);
  }
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
  TACC_RETURN_IF_ERROR(me == 0 ? Send(receiver, greeting, kNcclGreetingBytes)
                               : Receive(sender, greeting, kNcclGreetingBytes));
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

}  // namespace tacc::worker
