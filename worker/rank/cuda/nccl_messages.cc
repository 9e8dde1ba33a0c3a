#include "worker/rank/cuda/nccl_messages.h"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "kernels/cuda/collective.h"
#include "worker/rank/cuda/errors.h"

namespace tacc::worker {
namespace {

using kernels::cuda::Progress;

constexpr absl::Duration kPollInterval = absl::Microseconds(50);
constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
// How long a rank that ends waits for the others to have taken what it sent.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(10);
constexpr int64_t kGreetingBytes = 64;
// A channel's communicator moves one message at a time beside everything else: it need not fill the GPU.
constexpr int kMaxMessageBlocks = 4;
constexpr size_t kIdWords = sizeof(ncclUniqueId) / sizeof(uint64_t);

#define TACC_RETURN_IF_CUDA_ERROR(call, what, gpu) TACC_RETURN_IF_ERROR(CudaStatus(static_cast<int>(call), what, gpu))

// Channel, sender, receiver; of collectives {-1, -1, -1}. In its order ranks connect.
using StreamKey = std::tuple<int64_t, int, int>;
const StreamKey kCollectiveKey = {-1, -1, -1};

std::string Ranks(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

const char* Name(CollectiveCall::Kind kind) {
  switch (kind) {
    case CollectiveCall::Kind::kExchange:
      return "an exchange with ";
    case CollectiveCall::Kind::kReduceScatter:
      return "a reduce-scatter with ";
    case CollectiveCall::Kind::kAllReduce:
      return "an all-reduce with ";
    case CollectiveCall::Kind::kSend:
      return "a message to ";
    case CollectiveCall::Kind::kReceive:
      return "a message from ";
  }
  return "";
}

kernels::cuda::Runs RunsOf(const Region& region) {
  return {region.data, region.run_bytes, region.IsContiguous() ? region.run_bytes : region.stride_bytes};
}

class NcclCommunication;

// A CUDA event without a time.
class Event {
 public:
  Event() = default;
  ~Event() {
    // Fails only when the context is lost, which has been said.
    if (event_ != nullptr) (void)cudaEventDestroy(event_);
  }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  absl::Status Create(int gpu) {
    TACC_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "an event", gpu);
    return absl::OkStatus();
  }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// A CUDA stream with a communicator of `ranks`, ascending or {sender, receiver}.
class NcclStream : public CommunicationStream, public GroupedMessages {
 public:
  NcclStream(NcclCommunication* owner, std::vector<int> ranks) : owner_(*owner), ranks_(std::move(ranks)) {}
  ~NcclStream() override;
  absl::Status Create();

  // Before the first group, in the order of StreamKey on all ranks: `id` is the same on all of the stream's.
  absl::Status Connect(const ncclUniqueId& id, char* greeting);

  GroupedMessages& messages() override { return *this; }
  absl::Status Begin() override;
  absl::Status Send(int peer, const void* data, int64_t bytes) override;
  absl::Status Receive(int peer, void* data, int64_t bytes) override;
  absl::Status End() override;

  absl::Status FollowCompute() override;
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override;
  absl::Status Pack(const Region& region, int64_t begin, int64_t count, char* flat) override;
  absl::Status Unpack(const char* flat, int64_t begin, int64_t count, const Region& region) override;
  absl::Status Copy(const Region& from, const Region& to) override;
  absl::Status Sum(const SumRequest& request) override;
  absl::Status BeginCall(const CollectiveCall* call) override;
  absl::Status EndCall() override;

  // For the watching thread, with the owner's mutex held. Ok, or why the communicators must be aborted.
  absl::Status Watch(absl::Time now);
  // Takes the communicator away, with the owner's mutex held.
  ncclComm_t Take() { return std::exchange(communicator_, nullptr); }

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
  // Runs kernels on this stream.
  absl::Status Queue(const std::function<void()>& kernels);
  // Returns when NCCL has done on the host what it was asked for; `what` and `peers` name it in errors.
  absl::Status WaitUntilReady(const char* what);
  absl::Status NcclError(ncclResult_t result, const std::string& what) const;
  std::vector<int> Peers() const;

  NcclCommunication& owner_;
  const std::vector<int> ranks_;
  cudaStream_t stream_ = nullptr;
  Event followed_;
  ncclComm_t communicator_ = nullptr;  // Guarded by the owner's mutex.
  bool is_in_group_ = false;
  std::vector<Entry> group_;
  Progress* progress_ = nullptr;            // On the host;
  Progress* progress_on_device_ = nullptr;  // the same memory.
  // Calls by their numbers, in words; guarded by the owner's mutex.
  std::map<const CollectiveCall*, uint64_t> numbers_;
  std::vector<std::string> calls_;
  // The watching thread's: when it saw the counts change last.
  uint64_t seen_begun_ = 0, seen_ended_ = 0;
  absl::Time seen_ = absl::InfiniteFuture();
};

class NcclCommunication : public Communication {
 public:
  explicit NcclCommunication(const NcclOptions& options) : options_(options) {}
  ~NcclCommunication() override;

  int rank() const override { return options_.host->rank(); }
  absl::StatusOr<std::unique_ptr<Arena>> AllocateStaging(int64_t num_bytes) override;
  absl::StatusOr<CommunicationStream*> CollectiveStream() override;
  absl::StatusOr<CommunicationStream*> MessageStream(uint32_t channel, int from, int to) override;
  absl::Status Connect() override;
  absl::Status Check() override {
    absl::MutexLock lock(&mutex_);
    return error_;
  }

  const NcclOptions& options() const { return options_; }
  absl::Mutex& mutex() ABSL_LOCK_RETURNED(mutex_) { return mutex_; }
  const absl::Status& error() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return error_; }

 private:
  absl::StatusOr<NcclStream*> FindStream(const StreamKey& key, std::vector<int> ranks);
  absl::StatusOr<std::map<StreamKey, ncclUniqueId>> ExchangeIds();
  void Loop();
  void Abort(const absl::Status& error);

  const NcclOptions options_;
  absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<StreamKey, std::unique_ptr<NcclStream>> streams_;  // Changed before Connect only.
  std::unique_ptr<Arena> greeting_;                           // Sent and received once by each channel.
  std::thread watcher_;
};

NcclStream::~NcclStream() {
  // What fails here has failed before, and been said.
  if (progress_ != nullptr) (void)cudaFreeHost(progress_);
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
  void* progress = nullptr;
  TACC_RETURN_IF_CUDA_ERROR(cudaHostAlloc(&progress, sizeof(Progress), cudaHostAllocMapped | cudaHostAllocPortable),
                            "pinned host memory", gpu);
  progress_ = new (progress) Progress();
  void* on_device = nullptr;
  TACC_RETURN_IF_CUDA_ERROR(cudaHostGetDevicePointer(&on_device, progress, 0), "the GPU's address of host memory", gpu);
  progress_on_device_ = static_cast<Progress*>(on_device);
  return absl::OkStatus();
}

std::vector<int> NcclStream::Peers() const {
  std::vector<int> peers;
  for (int rank : ranks_) {
    if (rank != owner_.rank()) peers.push_back(rank);
  }
  return peers;
}

absl::Status NcclStream::NcclError(ncclResult_t result, const std::string& what) const {
  return absl::UnavailableError(absl::StrCat("rank ", owner_.rank(), ", NCCL with ", Ranks(Peers()), ": ", what, ": ",
                                             ncclGetErrorString(result), " (", ncclGetLastError(communicator_),
                                             "); NCCL_DEBUG=WARN in the worker's environment says more"));
}

absl::Status NcclStream::WaitUntilReady(const char* what) {
  const absl::Time deadline = absl::Now() + owner_.options().timeout;
  while (true) {
    {
      absl::MutexLock lock(&owner_.mutex());
      TACC_RETURN_IF_ERROR(owner_.error());
      ncclResult_t state = ncclSuccess;
      if (const ncclResult_t result = ncclCommGetAsyncError(communicator_, &state); result != ncclSuccess)
        return NcclError(result, what);
      if (state == ncclSuccess) return absl::OkStatus();
      if (state != ncclInProgress) return NcclError(state, what);
    }
    if (absl::Now() > deadline) {
      return absl::UnavailableError(absl::StrCat("no answer from ", Ranks(Peers()), " for ",
                                                 absl::FormatDuration(owner_.options().timeout), " in NCCL's ", what));
    }
    absl::SleepFor(kPollInterval);
  }
}

absl::Status NcclStream::Connect(const ncclUniqueId& id, char* greeting) {
  const int me = static_cast<int>(std::find(ranks_.begin(), ranks_.end(), owner_.rank()) - ranks_.begin());
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const bool is_channel = greeting != nullptr;
  if (is_channel) config.maxCTAs = kMaxMessageBlocks;
  {
    absl::MutexLock lock(&owner_.mutex());
    const ncclResult_t result =
        ncclCommInitRankConfig(&communicator_, static_cast<int>(ranks_.size()), id, me, &config);
    if (result != ncclSuccess && result != ncclInProgress) return NcclError(result, "connecting");
  }
  TACC_RETURN_IF_ERROR(WaitUntilReady("connecting"));
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
    TACC_RETURN_IF_ERROR(owner_.error());
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
  return WaitUntilReady("first messages");
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
  const kernels::cuda::StreamScope scope(stream_);
  try {
    kernels();
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
  return absl::OkStatus();
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
  uint64_t number = 0;
  {
    absl::MutexLock lock(&owner_.mutex());
    const auto [it, is_new] = numbers_.emplace(call, calls_.size());
    number = it->second;
    if (is_new) {
      std::vector<int> others;
      int64_t bytes = 0;
      for (int rank : call->members) {
        if (rank != owner_.rank()) others.push_back(rank);
      }
      const bool is_receive = call->kind == CollectiveCall::Kind::kReceive;
      for (const Region& region : is_receive ? call->receive : call->send) bytes += region.bytes();
      calls_.push_back(absl::StrCat(Name(call->kind), Ranks(others), " (", bytes, " bytes)"));
    }
  }
  return Queue([&] { kernels::cuda::PublishBegin(number, progress_on_device_); });
}

absl::Status NcclStream::EndCall() {
  return Queue([&] { kernels::cuda::PublishEnd(progress_on_device_); });
}

absl::Status NcclStream::Watch(absl::Time now) {
  if (communicator_ == nullptr) return absl::OkStatus();
  ncclResult_t state = ncclSuccess;
  if (const ncclResult_t result = ncclCommGetAsyncError(communicator_, &state); result != ncclSuccess)
    return NcclError(result, "watching");
  if (state != ncclSuccess && state != ncclInProgress) return NcclError(state, "a message");
  const uint64_t begun = std::atomic_ref<uint64_t>(progress_->num_begun).load();
  const uint64_t ended = std::atomic_ref<uint64_t>(progress_->num_ended).load();
  if (begun != seen_begun_ || ended != seen_ended_ || begun == ended) {
    seen_begun_ = begun;
    seen_ended_ = ended;
    seen_ = now;
  }
  if (now - seen_ <= owner_.options().timeout) return absl::OkStatus();
  const uint64_t number = std::atomic_ref<uint64_t>(progress_->current).load();
  return absl::UnavailableError(
      absl::StrCat("rank ", owner_.rank(), " waits for ", number < calls_.size() ? calls_[number] : "other ranks",
                   " and had no answer for ", absl::FormatDuration(owner_.options().timeout)));
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
  watcher_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void NcclCommunication::Loop() {
  absl::Status found = CudaStatus(static_cast<int>(cudaSetDevice(options_.gpu)), "choosing the GPU", options_.gpu);
  while (found.ok()) {
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), kWatchInterval)) return;
    const absl::Time now = absl::Now();
    for (const auto& [key, stream] : streams_) found.Update(stream->Watch(now));
  }
  Abort(found);
}

void NcclCommunication::Abort(const absl::Status& error) {
  std::vector<ncclComm_t> communicators;
  {
    absl::MutexLock lock(&mutex_);
    error_.Update(error);
    // Collectives' last: NCCL waits there until all recordings are gone.
    for (auto it = streams_.rbegin(); it != streams_.rend(); ++it) communicators.push_back(it->second->Take());
  }
  // The error has been said; what aborting may add says nothing more.
  for (ncclComm_t communicator : communicators) {
    if (communicator != nullptr) (void)ncclCommAbort(communicator);
  }
}

// Where nothing failed each communicator ends in order: the other ranks have what this one sent.
NcclCommunication::~NcclCommunication() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  const bool is_connected = watcher_.joinable();
  if (is_connected) watcher_.join();
  const absl::Time deadline = absl::Now() + kFinalizeTimeout;
  for (const auto& [key, stream] : streams_) {
    ncclComm_t communicator = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      communicator = stream->Take();
    }
    if (communicator == nullptr) continue;
    ncclResult_t state = is_connected ? ncclCommFinalize(communicator) : ncclInternalError;
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
  return std::make_unique<NcclCommunication>(options);
}

}  // namespace tacc::worker
