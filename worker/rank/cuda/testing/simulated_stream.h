// Included by simulated_communication.cc: a queue of messages and of work on them.
#ifndef TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_STREAM_H_
#define TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_STREAM_H_

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "kernels/check.h"
#include "kernels/cuda/collective.h"
#include "worker/rank/cuda/device/runs.h"
#include "worker/rank/cuda/testing/simulated_queue.h"

namespace tacc::worker {

// Tags: of a queue, and in it of the k-th group with messages between two ranks; the host's are below.
inline constexpr uint32_t kMaxGroups = 1 << 16;

class SimulatedCommunication::Stream : public CommunicationStream, public GroupedMessages {
 public:
  Stream(SimulatedCommunication* owner, uint32_t tag)
      : owner_(*owner),
        tag_(1 + tag),
        queue_(owner->state_, Queue::Gate::kNone,
               owner->slow_ == Slow::kCommunication ? kSlowness : absl::ZeroDuration()) {}

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
    return Queued([this, group = std::exchange(group_, {})] {
      std::map<int, uint32_t> tags;
      for (const Entry& entry : group) {
        if (tags.count(entry.peer) == 0) tags[entry.peer] = tag_ * kMaxGroups + num_groups_[entry.peer]++;
      }
      queue_.Push([this, group, tags] {
        absl::Status status = Exchange(group, tags);
        absl::MutexLock lock(&owner_.state_->mutex);
        owner_.state_->error.Update(status);
      });
    });
  }

  absl::Status FollowCompute() override {
    if (owner_.recording_ != nullptr) owner_.recording_->streams.insert(this);
    return Queued([this] { queue_.PushWait(owner_.compute_->PushPlace()); });
  }
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override { return std::make_unique<EndMark>(this); }
  absl::StatusOr<std::unique_ptr<Device::Mark>> CreateTimedMark() override {
    ++owner_.num_timed_marks_;
    return std::make_unique<TimedMark>(&owner_, &queue_);
  }

  absl::Status Pack(const Region& region, int64_t begin, int64_t count, char* flat) override {
    return Move(RunsOf(region), begin, {flat, count, count}, 0, count, /*packs=*/true);
  }
  absl::Status Unpack(const char* flat, int64_t begin, int64_t count, const Region& region) override {
    return Move({const_cast<char*>(flat), count, count}, 0, RunsOf(region), begin, count, /*packs=*/true);
  }
  absl::Status Copy(const Region& from, const Region& to) override {
    if (from.bytes() != to.bytes()) return absl::InternalError("regions of different sizes");
    return Move(RunsOf(from), 0, RunsOf(to), 0, from.bytes());
  }
  absl::Status Sum(const SumRequest& request) override {
    return Work([request] {
      kernels::cuda::SumInOrder(
          {request.others, request.stride_bytes, request.own, request.me, request.n, request.dtype}, request.elements,
          request.sum, request.sum_dtype);
    });
  }
  absl::Status BeginCall(const CollectiveCall* call) override {
    call_ = call;
    const uint32_t number = owner_.watch_.NumberOf(*call, owner_.current_call_);
    return Work([this, number] { kernels::cuda::PublishBegin(number, &progress_); });
  }
  absl::Status EndCall() override {
    return Work([this] { kernels::cuda::PublishEnd(&progress_); });
  }

  kernels::cuda::Progress& progress() { return progress_; }
  // What is queued here is of the program's call and of this node, which all members share whose program is the same.
  std::pair<int64_t, int64_t> CallAndNode() const {
    if (call_ == nullptr || call_->across_stages) return {-1, -1};
    return {owner_.current_call_, call_->node};
  }
  bool is_recording() const { return owner_.recording_ != nullptr; }

  // Sends `bytes` to the next of a ring and fills as many with what the one before sends.
  using Pass = std::function<absl::Status(const void* send, void* receive, int64_t bytes)>;
  // Queues `around`, which passes on in a ring of two or more in which these two are this rank's neighbours.
  absl::Status QueueRing(int next, int before, std::function<absl::Status(const Pass&)> around) {
    if (is_in_group_) return absl::InternalError("a collective in a group of messages");
    return Queued([this, next, before, around = std::move(around)] {
      std::map<int, uint32_t> tags;
      for (int peer : {next, before}) {
        if (tags.count(peer) == 0) tags[peer] = tag_ * kMaxGroups + num_groups_[peer]++;
      }
      queue_.Push([this, next, before, around, tags] {
        absl::Status status = around([&](const void* send, void* receive, int64_t bytes) {
          return Exchange(
              {{next, const_cast<void*>(send), bytes, /*is_send=*/true}, {before, receive, bytes, /*is_send=*/false}},
              tags);
        });
        absl::MutexLock lock(&owner_.state_->mutex);
        owner_.state_->error.Update(status);
      });
    });
  }

 private:
  struct Entry {
    int peer;
    void* data;
    int64_t bytes;
    bool is_send;
  };

  class EndMark : public Mark {
   public:
    explicit EndMark(Stream* stream) : stream_(*stream) {}
    absl::Status Set() override {
      recording_ = stream_.owner_.RecordingNumber();
      num_queued_ = stream_.num_queued_;
      return stream_.Queued([this] { place_ = stream_.queue_.PushPlace(); }, /*num_works=*/0);
    }
    absl::Status LetComputeFollow() override {
      if (stream_.owner_.RecordingNumber() != recording_)
        return absl::InternalError("a wait across the end of a recording");
      if (recording_ != 0 && num_queued_ == stream_.num_queued_) stream_.owner_.recording_->unjoined.erase(&stream_);
      stream_.owner_.Do([this] { stream_.owner_.compute_->PushWait(place_); });
      return absl::OkStatus();
    }

   private:
    Stream& stream_;
    int64_t recording_ = 0;  // In which it was set last.
    int64_t num_queued_ = 0;
    std::shared_ptr<Place> place_;
  };

  // What `action` queues here, `num_works` pieces of it.
  absl::Status Queued(std::function<void()> action, int num_works = 1) {
    if (Recording* const recording = owner_.recording_; recording != nullptr) {
      if (recording->streams.count(this) == 0) return absl::InternalError("queued beside the recording");
      if (num_works > 0) recording->unjoined.insert(this);
    }
    num_queued_ += num_works;
    owner_.Do(std::move(action));
    return absl::OkStatus();
  }
  absl::Status Work(std::function<void()> work) {
    return Queued([this, work = std::move(work)] { queue_.Push(work); });
  }

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
    for (const std::unique_ptr<Message>& message : messages) {
      absl::Status status = message->Wait();
      while (absl::IsUnavailable(status) && owner_.IsWatched() && owner_.num_aborts_ == 0) status = message->Wait();
      TACC_RETURN_IF_ERROR(status);
    }
    return absl::OkStatus();
  }

  absl::Status Move(const kernels::cuda::Runs& from, int64_t from_begin, const kernels::cuda::Runs& to,
                    int64_t to_begin, int64_t count, bool packs = false) {
    return Work([=, this] {
      kernels::cuda::CopyRuns(from, from_begin, to, to_begin, count);
      if (packs) owner_.packed_bytes_ += count;
    });
  }

  SimulatedCommunication& owner_;
  const uint32_t tag_;
  bool is_in_group_ = false;
  std::vector<Entry> group_;
  std::map<int, uint32_t> num_groups_;  // With a rank.
  int64_t num_queued_ = 0;
  const CollectiveCall* call_ = nullptr;  // That began last.
  kernels::cuda::Progress progress_;
  Queue queue_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_STREAM_H_
