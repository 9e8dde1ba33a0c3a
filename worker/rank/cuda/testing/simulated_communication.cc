#include "worker/rank/cuda/testing/simulated_communication.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "kernels/check.h"
#include "kernels/cuda/collective.h"
#include "machine/clock.h"
#include "worker/rank/collectives/sum_kernels.h"
#include "worker/rank/cuda/collectives/group_splits.h"
#include "worker/rank/cuda/device/runs.h"
#include "worker/rank/cuda/testing/simulated_group.h"
#include "worker/rank/cuda/testing/simulated_queue.h"
#include "worker/rank/cuda/testing/simulated_stream.h"

namespace tacc::worker {
namespace {

// Of what ranks tell each other when they connect: of no queue's.
constexpr uint32_t kConnectTag = 0xffffffff;

}  // namespace

SimulatedCommunication::SimulatedCommunication(Transport* transport, Slow slow, absl::Duration timeout,
                                               StatusBlock* status)
    : state_(std::make_shared<State>()),
      transport_(*transport),
      slow_(slow),
      timeout_(timeout),
      status_(status),
      compute_(std::make_unique<Queue>(state_, Queue::Gate::kState,
                                       slow == Slow::kCompute ? kSlowness : absl::ZeroDuration())),
      copies_(std::make_unique<Queue>(state_, Queue::Gate::kNone,
                                      slow == Slow::kCopies ? kSlowness : absl::ZeroDuration())),
      watch_(transport->rank(), timeout) {}

SimulatedCommunication::~SimulatedCommunication() = default;

int SimulatedCommunication::rank() const { return transport_.rank(); }

absl::StatusOr<std::unique_ptr<Arena>> SimulatedCommunication::AllocateStaging(int64_t num_bytes) {
  ++num_allocations_;
  return Arena::Create(num_bytes, 0);
}

absl::StatusOr<CommunicationStream*> SimulatedCommunication::CollectiveStream() {
  std::unique_ptr<Stream>& stream = streams_[{0, -1, -1}];
  if (stream == nullptr) stream = std::make_unique<Stream>(this, 0);
  return stream.get();
}

absl::StatusOr<GroupCollectives*> SimulatedCommunication::Group(const std::vector<int>& members) {
  TACC_RETURN_IF_ERROR(CollectiveStream().status());
  const auto me = std::find(members.begin(), members.end(), rank());
  if (me == members.end()) return absl::InternalError("a group without this rank");
  std::unique_ptr<SimulatedGroup>& group = groups_[members];
  if (group == nullptr)
    group =
        std::make_unique<SimulatedGroup>(streams_[{0, -1, -1}].get(), members, static_cast<int>(me - members.begin()));
  return group.get();
}

absl::StatusOr<CommunicationStream*> SimulatedCommunication::MessageStream(uint32_t channel, int from, int to) {
  std::unique_ptr<Stream>& stream = streams_[{channel, from, to}];
  if (stream == nullptr) stream = std::make_unique<Stream>(this, 1 + channel);
  return stream.get();
}

absl::StatusOr<std::vector<std::vector<uint64_t>>> SimulatedCommunication::Gather(const std::vector<uint64_t>& words) {
  std::vector<std::vector<uint64_t>> all(transport_.world(), std::vector<uint64_t>(words.size()));
  all[rank()] = words;
  std::vector<std::unique_ptr<Message>> messages;
  for (int peer = 0; peer < transport_.world(); ++peer) {
    if (peer == rank()) continue;
    const size_t bytes = words.size() * sizeof(uint64_t);
    TACC_ASSIGN_OR_RETURN(messages.emplace_back(), transport_.Send(peer, kConnectTag, words.data(), bytes));
    TACC_ASSIGN_OR_RETURN(messages.emplace_back(), transport_.Receive(peer, kConnectTag, all[peer].data(), bytes));
  }
  const absl::Time deadline = absl::Now() + (IsWatched() ? timeout_ : absl::ZeroDuration());
  for (const std::unique_ptr<Message>& message : messages) {
    absl::Status status = message->Wait();
    while (absl::IsUnavailable(status) && absl::Now() < deadline) status = message->Wait();
    TACC_RETURN_IF_ERROR(status);
  }
  return all;
}

absl::StatusOr<std::vector<int>> SimulatedCommunication::Split(int color, int key) {
  const uint64_t number = num_splits_++;
  TACC_ASSIGN_OR_RETURN(const auto all, Gather({number, static_cast<uint64_t>(color), static_cast<uint64_t>(key)}));
  std::map<int, int> by_key;
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r][0] != number) return absl::InternalError("NCCL: ranks make splits in different orders");
    if (color < 0 || static_cast<int>(all[r][1]) != color) continue;
    if (!by_key.emplace(static_cast<int>(all[r][2]), static_cast<int>(r)).second)
      return absl::InternalError(absl::StrCat("NCCL: two ranks of a split with color ", color, " have one key"));
  }
  std::vector<int> members;
  for (const auto& [place, member] : by_key) members.push_back(member);
  return members;
}

absl::Status SimulatedCommunication::Connect() {
  std::vector<std::vector<int>> to_split;
  for (const auto& [members, group] : groups_) {
    if (static_cast<int>(members.size()) == transport_.world()) {
      TACC_RETURN_IF_ERROR(group->Connect(members));
    } else {
      to_split.push_back(members);
    }
  }
  const auto gather = [this](const std::vector<uint64_t>& words) { return Gather(words); };
  TACC_ASSIGN_OR_RETURN(const auto splits, AgreeOnSplits(rank(), to_split, gather));
  for (const std::vector<int>& members : splits) {
    const auto me = std::find(members.begin(), members.end(), rank());
    TACC_ASSIGN_OR_RETURN(const std::vector<int> made,
                          Split(members.empty() ? -1 : members[0], static_cast<int>(me - members.begin())));
    if (!members.empty()) TACC_RETURN_IF_ERROR(groups_.at(members)->Connect(made));
  }
  if (!IsWatched()) return absl::OkStatus();
  for (const auto& [key, stream] : streams_) watch_.AddQueue(&stream->progress());
  watch_.Show(status_, &place_);
  watch_.Start(nullptr, [this] { ++num_aborts_; });
  return absl::OkStatus();
}

absl::Status SimulatedCommunication::EnterCall(uint32_t call) {
  if (recording_ != nullptr) return absl::InternalError("a call is entered in a recording");
  current_call_ = call;
  Compute([this, call] { kernels::cuda::PublishPlace(call, &place_); });
  return absl::OkStatus();
}

absl::Status SimulatedCommunication::Check() {
  TACC_RETURN_IF_ERROR(watch_.Check());
  absl::MutexLock lock(&state_->mutex);
  return state_->error;
}

int64_t SimulatedCommunication::RecordingNumber() const { return recording_ == nullptr ? 0 : recording_->number; }

void SimulatedCommunication::Do(std::function<void()> action) {
  if (recording_ != nullptr) {
    recording_->actions.push_back(std::move(action));
  } else {
    action();
  }
}

void SimulatedCommunication::Compute(std::function<void()> work) {
  Do([this, work = std::move(work)] { compute_->Push(work); });
}

void SimulatedCommunication::CopyAhead(std::function<void()> work) {
  TACC_KERNEL_CHECK(recording_ == nullptr);
  copies_->Push(std::move(work));
  compute_->PushWait(copies_->PushPlace());
}

std::unique_ptr<Device::Mark> SimulatedCommunication::CreateMark() {
  return std::make_unique<TimedMark>(this, compute_.get());
}

std::unique_ptr<Device::Mark> SimulatedCommunication::CreateMarkAhead() {
  return std::make_unique<TimedMark>(this, copies_.get());
}

void SimulatedCommunication::WaitFor(const Place& place) {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->is_open = true;
  }
  place.reached.WaitForNotification();
  absl::MutexLock lock(&state_->mutex);
  state_->is_open = false;
}

absl::Status SimulatedCommunication::Synchronize() {
  WaitFor(*compute_->PushPlace());
  absl::MutexLock lock(&state_->mutex);
  return state_->error;
}

absl::StatusOr<std::function<void()>> SimulatedCommunication::Record(const std::function<absl::Status()>& queue) {
  Recording recording{++num_recordings_};
  recording_ = &recording;
  const absl::Status status = queue();
  recording_ = nullptr;
  TACC_RETURN_IF_ERROR(status);
  if (!recording.unjoined.empty()) return absl::InternalError("compute does not follow a queue at the recording's end");
  return std::function<void()>([actions = std::move(recording.actions)] {
    for (const std::function<void()>& action : actions) action();
  });
}

void SimulatedCommunication::Fail(absl::Status status) {
  absl::MutexLock lock(&state_->mutex);
  state_->error.Update(status);
}

int64_t SimulatedCommunication::num_begun() const {
  int64_t sum = 0;
  for (const auto& [key, stream] : streams_) sum += stream->progress().num_begun;
  return sum;
}

int64_t SimulatedCommunication::num_ended() const {
  int64_t sum = 0;
  for (const auto& [key, stream] : streams_) sum += stream->progress().num_ended;
  return sum;
}

}  // namespace tacc::worker
