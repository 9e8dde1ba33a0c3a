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

namespace tacc::worker {
namespace {

constexpr absl::Duration kSlowness = absl::Microseconds(300);
// Tags: of a queue, and in it of the k-th group with messages between two ranks; the host's are below.
constexpr uint32_t kMaxGroups = 1 << 16;
// Of what ranks tell each other when they connect: of no queue's.
constexpr uint32_t kConnectTag = 0xffffffff;

uint64_t IdOf(const std::vector<int>& ranks) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const int rank : ranks) hash = (hash ^ static_cast<uint64_t>(rank)) * 1099511628211ull;
  return hash;
}

}  // namespace

struct SimulatedCommunication::State {
  absl::Mutex mutex;
  bool is_open ABSL_GUARDED_BY(mutex) = false;  // Compute may go on; the other queues follow it.
  absl::Status error ABSL_GUARDED_BY(mutex);
};

// In a queue.
struct SimulatedCommunication::Place {
  absl::Notification reached;
  double seconds = 0;  // When, by the host's clock.
};

struct SimulatedCommunication::Recording {
  int64_t number = 0;  // From 1.
  std::vector<std::function<void()>> actions;
  std::set<const Stream*> streams;   // That have followed compute,
  std::set<const Stream*> unjoined;  // and of these the ones that compute does not follow since.
};

class SimulatedCommunication::Queue {
 public:
  enum class Gate { kNone, kState };
  Queue(std::shared_ptr<State> state, Gate gate, absl::Duration delay)
      : state_(std::move(state)), gate_(gate), delay_(delay), thread_([this] { Loop(); }) {}
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
  std::shared_ptr<Place> PushPlace() {
    auto place = std::make_shared<Place>();
    Push([place] {
      place->seconds = SteadySeconds();
      place->reached.Notify();
    });
    return place;
  }
  void PushWait(std::shared_ptr<Place> place) {
    Push([place = std::move(place)] { place->reached.WaitForNotification(); });
  }

 private:
  void Loop() {
    while (true) {
      std::function<void()> work;
      {
        absl::MutexLock lock(&state_->mutex);
        const auto may_go_on = [this] {
          return stop_ || ((gate_ == Gate::kNone || state_->is_open) && !work_.empty());
        };
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
  const Gate gate_;
  const absl::Duration delay_;
  bool stop_ = false;
  std::deque<std::function<void()>> work_;
  std::thread thread_;
};

class SimulatedCommunication::TimedMark : public Device::Mark {
 public:
  TimedMark(SimulatedCommunication* owner, Queue* queue) : owner_(*owner), queue_(*queue) {}
  absl::Status Set() override {
    if (owner_.recording_ != nullptr) return absl::InternalError("a time in a recording");
    place_ = queue_.PushPlace();
    return absl::OkStatus();
  }
  absl::Status Wait() override {
    if (place_ != nullptr) owner_.WaitFor(*place_);
    return absl::OkStatus();
  }
  absl::StatusOr<double> SecondsSince(const Mark& earlier) const override {
    const std::shared_ptr<Place>& from = static_cast<const TimedMark&>(earlier).place_;
    for (const std::shared_ptr<Place>& place : {from, place_}) {
      if (place == nullptr || !place->reached.HasBeenNotified())
        return absl::InternalError("the time of a place that has not been reached");
    }
    return place_->seconds - from->seconds;
  }

 private:
  SimulatedCommunication& owner_;
  Queue& queue_;
  std::shared_ptr<Place> place_;
};

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

class SimulatedCommunication::SimulatedGroup : public GroupCollectives {
 public:
  SimulatedGroup(Stream* stream, std::vector<int> members, int me)
      : stream_(*stream), members_(std::move(members)), me_(me) {}

  // The members that a split gave.
  absl::Status Connect(const std::vector<int>& members) {
    if (members != members_)
      return absl::InternalError(absl::StrCat("NCCL: a split of ", RanksText(members), " for ", RanksText(members_)));
    is_connected_ = true;
    return absl::OkStatus();
  }

  absl::Status AllGather(const void* send, void* receive, int64_t bytes, int64_t rows) override {
    const int64_t n = static_cast<int64_t>(members_.size());
    for (int64_t row = 0; row < rows; ++row) {
      const char* const from = Bytes(send) + row * bytes;
      char* const to = Bytes(receive) + row * n * bytes;
      TACC_RETURN_IF_ERROR(CheckMemory(from, bytes, to, n * bytes, to + me_ * bytes));
      TACC_RETURN_IF_ERROR(Call({Header::kAllGather, bytes, 0}, [=, this](const Stream::Pass& pass) {
        std::memmove(to + me_ * bytes, from, bytes);
        return PassAround(pass, {to, n * bytes}, bytes);
      }));
    }
    return absl::OkStatus();
  }

  absl::Status ReduceScatter(const void* send, void* receive, int64_t elements, kernels::DType dtype,
                             int64_t rows) override {
    const int64_t n = static_cast<int64_t>(members_.size()), bytes = elements * kernels::SizeOf(dtype);
    for (int64_t row = 0; row < rows; ++row) {
      char* const from = Bytes(send) + row * n * bytes;
      char* const to = Bytes(receive) + row * bytes;
      TACC_RETURN_IF_ERROR(CheckMemory(to, bytes, from, n * bytes, from + me_ * bytes));
      TACC_RETURN_IF_ERROR(Call({Header::kReduceScatter, bytes, static_cast<int64_t>(dtype)},
                                [=, this](const Stream::Pass& pass) -> absl::Status {
                                  std::vector<char> sums(from, from + n * bytes);
                                  TACC_RETURN_IF_ERROR(SumAround(pass, {sums.data(), n * bytes}, bytes, dtype));
                                  std::memcpy(to, sums.data() + me_ * bytes, bytes);
                                  return absl::OkStatus();
                                }));
    }
    return absl::OkStatus();
  }

  absl::Status AllReduce(const void* send, void* receive, int64_t elements, kernels::DType dtype) override {
    const int64_t bytes = elements * kernels::SizeOf(dtype);
    TACC_RETURN_IF_ERROR(CheckMemory(send, bytes, receive, bytes, receive));
    return Call({Header::kAllReduce, bytes, static_cast<int64_t>(dtype)},
                [=, this](const Stream::Pass& pass) -> absl::Status {
                  const int64_t n = static_cast<int64_t>(members_.size());
                  const int64_t part = (elements + n - 1) / n * kernels::SizeOf(dtype);
                  std::memmove(receive, send, bytes);
                  TACC_RETURN_IF_ERROR(SumAround(pass, {receive, bytes}, part, dtype));
                  return PassAround(pass, {receive, bytes}, part);
                });
  }

 private:
  // What members must agree on.
  struct Header {
    enum Kind : int64_t { kAllGather, kReduceScatter, kAllReduce };
    int64_t kind = 0, bytes = 0, dtype = 0, number = 0, program_call = 0, node = 0;
    uint64_t group = 0;
    bool operator==(const Header&) const = default;
  };
  static_assert(sizeof(Header) == kHeaderBytes);

  static char* Bytes(const void* data) { return const_cast<char*>(static_cast<const char*>(data)); }

  // `part` lies apart from `whole`, or is the place in it.
  static absl::Status CheckMemory(const void* part, int64_t part_bytes, const void* whole, int64_t whole_bytes,
                                  const void* place) {
    if (part_bytes <= 0) return absl::InternalError("a collective of nothing");
    const bool apart = Bytes(part) + part_bytes <= Bytes(whole) || Bytes(whole) + whole_bytes <= Bytes(part);
    return apart || part == place ? absl::OkStatus() : absl::InternalError("NCCL's memory overlaps, and not in place");
  }

  // Memory cut into a part for each member; the last ones may be shorter or empty.
  struct Whole {
    void* data = nullptr;
    int64_t bytes = 0;
  };
  // The part of the member `i` places after this one.
  std::pair<char*, int64_t> PartOf(const Whole& whole, int64_t i, int64_t part) const {
    const int64_t n = static_cast<int64_t>(members_.size());
    const int64_t begin = std::min(((me_ + i) % n + n) % n * part, whole.bytes);
    return {Bytes(whole.data) + begin, std::min(part, whole.bytes - begin)};
  }
  // Passes on a part, which travels as long as any.
  static absl::Status PassPart(const Stream::Pass& pass, int64_t part, std::pair<const char*, int64_t> send,
                               std::pair<char*, int64_t> receive) {
    std::vector<char> out(part), in(part);
    std::memcpy(out.data(), send.first, send.second);
    TACC_RETURN_IF_ERROR(pass(out.data(), in.data(), part));
    std::memcpy(receive.first, in.data(), receive.second);
    return absl::OkStatus();
  }

  // Each member's part, from it to all others.
  absl::Status PassAround(const Stream::Pass& pass, const Whole& whole, int64_t part) const {
    const int64_t n = static_cast<int64_t>(members_.size());
    for (int64_t step = 0; step + 1 < n; ++step) {
      TACC_RETURN_IF_ERROR(PassPart(pass, part, PartOf(whole, -step, part), PartOf(whole, -step - 1, part)));
    }
    return absl::OkStatus();
  }

  // Each member's part, summed from the member after it around to itself; the other parts are partial sums then.
  absl::Status SumAround(const Stream::Pass& pass, const Whole& whole, int64_t part, kernels::DType dtype) const {
    const int64_t n = static_cast<int64_t>(members_.size());
    for (int64_t step = 0; step + 1 < n; ++step) {
      const auto [own, bytes] = PartOf(whole, -step - 2, part);
      const int64_t elements = bytes / kernels::SizeOf(dtype);
      std::vector<char> partial(bytes), wide(elements * kernels::SizeOf(SumType(dtype)));
      TACC_RETURN_IF_ERROR(PassPart(pass, part, PartOf(whole, -step - 1, part), {partial.data(), bytes}));
      CopyElements(dtype, partial.data(), wide.data(), elements);
      AddElements(dtype, own, wide.data(), elements);
      RoundElements(SumType(dtype), wide.data(), dtype, own, elements);
    }
    return absl::OkStatus();
  }

  // Queues `around`, after neighbours have told each other that they make the same call.
  absl::Status Call(Header header, std::function<absl::Status(const Stream::Pass&)> around) {
    if (!is_connected_) return absl::InternalError("NCCL: a collective of a group that no split has made");
    if (stream_.is_recording() && !has_called_)
      return absl::InternalError("NCCL: the first call of a group, in which its members connect, is recorded");
    has_called_ = true;
    const int n = static_cast<int>(members_.size()), before = (me_ + n - 1) % n;
    std::tie(header.program_call, header.node) = stream_.CallAndNode();
    header.group = IdOf(members_);
    return stream_.QueueRing(
        members_[(me_ + 1) % n], members_[before],
        [=, this, around = std::move(around)](const Stream::Pass& pass) -> absl::Status {
          Header mine = header, theirs;
          mine.number = num_calls_++;
          if (members_.size() == 1) return around(pass);  // Which passes on nothing.
          TACC_RETURN_IF_ERROR(pass(&mine, &theirs, sizeof(Header)));
          if (theirs == mine) return around(pass);
          return absl::InternalError(absl::StrCat("NCCL: ranks ", members_[me_], " and ", members_[before],
                                                  " call different collectives of their group"));
        });
  }

  Stream& stream_;
  const std::vector<int> members_;
  const int me_;
  bool is_connected_ = false, has_called_ = false;
  int64_t num_calls_ = 0;  // Of the queue's thread.
};

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
