#include "worker/rank/cuda/collectives/nccl_messages.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/cuda/collectives/group_splits.h"
#include "worker/rank/cuda/collectives/nccl_communication.h"
#include "worker/rank/cuda/device/errors.h"

namespace tacc::worker {
namespace {

// How long a rank that ends waits for the others to have taken what it sent.
constexpr absl::Duration kFinalizeTimeout = absl::Seconds(10);
// Of so many every one may be waiting for another rank at once, and leaves room on the GPU and in its hardware queues.
constexpr size_t kMaxChannels = 24;
constexpr size_t kIdWords = sizeof(ncclUniqueId) / sizeof(uint64_t);
const std::tuple<int64_t, int, int> kCollectiveKey = {-1, -1, -1};

}  // namespace

absl::StatusOr<bool> NcclCommunication::GroupsMayShare() const {
  if (!AreSeveralMachines(*options_.host)) return true;
  int major = 0;
  TACC_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, options_.gpu),
                            "the GPU's compute capability", options_.gpu);
  return major < 10;
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
absl::StatusOr<std::map<NcclCommunication::StreamKey, ncclUniqueId>> NcclCommunication::ExchangeIds() {
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
  TACC_ASSIGN_OR_RETURN(greeting_, AllocateStaging(kNcclGreetingBytes));
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
      absl::SleepFor(kNcclPollInterval);
      if (const ncclResult_t result = ncclCommGetAsyncError(communicator, &state); result != ncclSuccess)
        state = result;
    }
    (void)(state == ncclSuccess ? ncclCommDestroy(communicator) : ncclCommAbort(communicator));
  }
}

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
