#include "worker/rank/cuda/simulated_communication.h"

#include <deque>
#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "graph/ir/status_macros.h"
#include "kernels/cuda/collective.h"

namespace tacc::worker {
namespace {

constexpr absl::Duration kSlowness = absl::Microseconds(300);
// Tags: of a queue, and in it of the k-th group with messages between two ranks.
constexpr uint32_t kMaxGroups = 1 << 16;

kernels::cuda::Runs RunsOf(const Region& region) {
  return {region.data, region.run_bytes, region.IsContiguous() ? region.run_bytes : region.stride_bytes};
}

}  // namespace

struct SimulatedCommunication::State {
  absl::Mutex mutex;
  bool is_open ABSL_GUARDED_BY(mutex) = false;  // Queues may begin.
  absl::Status error ABSL_GUARDED_BY(mutex);
};

class SimulatedCommunication::Queue {
 public:
  Queue(std::shared_ptr<State> state, absl::Duration delay)
      : state_(std::move(state)), delay_(delay), thread_([this] { Loop(); }) {}
  // What has been queued is done first.
  ~Queue() {
    {
      absl::MutexLock lock(&state_->mutex);
      stop_ = state_->is_open = true;
    }
    thread_.join();
  }

  void Push(std::function<void()> work) {
    absl::MutexLock lock(&state_->mutex);
    work_.push_back(std::move(work));
  }
  // Queued here, and what the other queue waits for.
  std::shared_ptr<absl::Notification> PushNotification() {
    auto notification = std::make_shared<absl::Notification>();
    Push([notification] { notification->Notify(); });
    return notification;
  }
  void PushWait(std::shared_ptr<absl::Notification> notification) {
    Push([notification = std::move(notification)] { notification->WaitForNotification(); });
  }

 private:
  void Loop() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&state_->mutex);
        const auto may_go_on = [this] { return stop_ || (state_->is_open && !work_.empty()); };
        state_->mutex.Await(absl::Condition(&may_go_on));
        if (work_.empty()) return;
        work = std::move(work_.front());
        work_.pop_front();
      }
      if (delay_ > absl::ZeroDuration()) absl::SleepFor(delay_);
      work();
    }
  }

  const std::shared_ptr<State> state_;
  const absl::Duration delay_;
  bool stop_ = false;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

class SimulatedCommunication::Stream : public CommunicationStream, public GroupedMessages {
 public:
  Stream(SimulatedCommunication* owner, uint32_t tag)
      : owner_(*owner),
        tag_(tag),
        queue_(owner->state_, owner->slow_ == Slow::kCommunication ? kSlowness : absl::ZeroDuration()) {}

  GroupedMessages& messages() override { return *this; }

  absl::Status Begin() override {
    if (is_in_group_) return absl::InternalError("a group in a group");
    is_in_group_ = true;
    return absl::OkStatus();
  }
  absl::Status Send(int peer, const void* data, int64_t bytes) override {
    return Add({peer, const_cast<void*>(data), bytes, /*is_send=*/true});
  }
  absl::Status Receive(int peer, void* data, int64_t bytes) override {
    return Add({peer, data, bytes, /*is_send=*/false});
  }
  absl::Status End() override {
    if (!is_in_group_) return absl::InternalError("no group has begun");
    is_in_group_ = false;
    std::map<int, uint32_t> tags;
    for (const Entry& entry : group_) {
      if (tags.count(entry.peer) == 0) tags[entry.peer] = tag_ * kMaxGroups + num_groups_[entry.peer]++;
    }
    queue_.Push([this, group = std::move(group_), tags] {
      absl::Status status = Exchange(group, tags);
      absl::MutexLock lock(&owner_.state_->mutex);
      owner_.state_->error.Update(status);
    });
    group_.clear();
    return absl::OkStatus();
  }

  absl::Status FollowCompute() override {
    queue_.PushWait(owner_.compute_->PushNotification());
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override { return std::make_unique<Place>(this); }

  absl::Status Pack(const Region& region, int64_t begin, int64_t count, char* flat) override {
    return Move(RunsOf(region), begin, {flat, count, count}, 0, count);
  }
  absl::Status Unpack(const char* flat, int64_t begin, int64_t count, const Region& region) override {
    return Move({const_cast<char*>(flat), count, count}, 0, RunsOf(region), begin, count);
  }
  absl::Status Copy(const Region& from, const Region& to) override {
    if (from.bytes() != to.bytes()) return absl::InternalError("regions of different sizes");
    return Move(RunsOf(from), 0, RunsOf(to), 0, from.bytes());
  }
  absl::Status Sum(const SumRequest& request) override {
    queue_.Push([request] {
      kernels::cuda::SumInOrder(
          {request.others, request.stride_bytes, request.own, request.me, request.n, request.dtype}, request.elements,
          request.sum, request.sum_dtype);
    });
    return absl::OkStatus();
  }
  absl::Status BeginCall(const CollectiveCall*) override {
    ++owner_.num_begun_;
    return absl::OkStatus();
  }
  absl::Status EndCall() override {
    ++owner_.num_ended_;
    return absl::OkStatus();
  }

 private:
  struct Entry {
    int peer;
    void* data;
    int64_t bytes;
    bool is_send;
  };

  class Place : public Mark {
   public:
    explicit Place(Stream* stream) : stream_(*stream) {}
    absl::Status Set() override {
      reached_ = stream_.queue_.PushNotification();
      return absl::OkStatus();
    }
    absl::Status LetComputeFollow() override {
      if (reached_ == nullptr) return absl::InternalError("the place has not been set");
      stream_.owner_.compute_->PushWait(reached_);
      return absl::OkStatus();
    }

   private:
    Stream& stream_;
    std::shared_ptr<absl::Notification> reached_;
  };

  absl::Status Add(const Entry& entry) {
    if (!is_in_group_) return absl::InternalError("a message outside a group");
    if (entry.bytes <= 0 || entry.peer == owner_.rank()) return absl::InternalError("an empty message, or to itself");
    group_.push_back(entry);
    return absl::OkStatus();
  }

  absl::Status Exchange(const std::vector<Entry>& group, const std::map<int, uint32_t>& tags) {
    std::vector<std::unique_ptr<Message>> messages;
    for (const Entry& entry : group) {
      const uint32_t tag = tags.at(entry.peer);
      TACC_ASSIGN_OR_RETURN(std::unique_ptr<Message> message,
                            entry.is_send ? owner_.transport_.Send(entry.peer, tag, entry.data, entry.bytes)
                                          : owner_.transport_.Receive(entry.peer, tag, entry.data, entry.bytes));
      messages.push_back(std::move(message));
    }
    for (const std::unique_ptr<Message>& message : messages) TACC_RETURN_IF_ERROR(message->Wait());
    return absl::OkStatus();
  }

  absl::Status Move(const kernels::cuda::Runs& from, int64_t from_begin, const kernels::cuda::Runs& to,
                    int64_t to_begin, int64_t count) {
    queue_.Push([=] { kernels::cuda::CopyRuns(from, from_begin, to, to_begin, count); });
    return absl::OkStatus();
  }

  SimulatedCommunication& owner_;
  const uint32_t tag_;
  bool is_in_group_ = false;
  std::vector<Entry> group_;
  std::map<int, uint32_t> num_groups_;  // With a rank.
  Queue queue_;
};

SimulatedCommunication::SimulatedCommunication(Transport* transport, Slow slow)
    : state_(std::make_shared<State>()),
      transport_(*transport),
      slow_(slow),
      compute_(std::make_unique<Queue>(state_, slow == Slow::kCompute ? kSlowness : absl::ZeroDuration())) {}

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

absl::StatusOr<CommunicationStream*> SimulatedCommunication::MessageStream(uint32_t channel, int from, int to) {
  std::unique_ptr<Stream>& stream = streams_[{channel, from, to}];
  if (stream == nullptr) stream = std::make_unique<Stream>(this, 1 + channel);
  return stream.get();
}

absl::Status SimulatedCommunication::Connect() { return absl::OkStatus(); }

absl::Status SimulatedCommunication::Check() {
  absl::MutexLock lock(&state_->mutex);
  return state_->error;
}

void SimulatedCommunication::Compute(std::function<void()> work) { compute_->Push(std::move(work)); }

absl::Status SimulatedCommunication::Synchronize() {
  const auto done = compute_->PushNotification();
  {
    absl::MutexLock lock(&state_->mutex);
    state_->is_open = true;
  }
  done->WaitForNotification();
  absl::MutexLock lock(&state_->mutex);
  state_->is_open = false;
  return state_->error;
}

void SimulatedCommunication::Fail(absl::Status status) {
  absl::MutexLock lock(&state_->mutex);
  state_->error.Update(status);
}

}  // namespace tacc::worker
