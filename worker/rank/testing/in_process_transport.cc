#include "worker/rank/testing/in_process_transport.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace tacc::worker {
namespace {

struct Entry {
  const void* source = nullptr;
  void* target = nullptr;
  size_t num_bytes = 0;
  bool done = false;
  absl::Status status;
};

// Sends and receives that wait for their counterpart, by (sender, receiver, tag).
struct Exchange {
  using Key = std::tuple<int, int, uint32_t>;
  struct Queue {
    std::deque<std::shared_ptr<Entry>> sends;
    std::deque<std::shared_ptr<Entry>> receives;
  };
  absl::Mutex mutex;
  std::map<Key, Queue> queues ABSL_GUARDED_BY(mutex);
  std::vector<int64_t> num_waits ABSL_GUARDED_BY(mutex);  // WaitForAll by rank.

  void Match(Queue& queue) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    while (!queue.sends.empty() && !queue.receives.empty()) {
      Entry& send = *queue.sends.front();
      Entry& receive = *queue.receives.front();
      if (send.num_bytes == receive.num_bytes) {
        std::memcpy(receive.target, send.source, send.num_bytes);
      } else {
        send.status = receive.status = absl::InternalError(
            absl::StrCat("a message of ", send.num_bytes, " bytes meets a receive of ", receive.num_bytes));
      }
      send.done = receive.done = true;
      queue.sends.pop_front();
      queue.receives.pop_front();
    }
  }
};

class InProcessMessage : public Message {
 public:
  InProcessMessage(std::shared_ptr<Exchange> exchange, std::shared_ptr<Entry> entry, int peer, absl::Duration timeout)
      : exchange_(std::move(exchange)), entry_(std::move(entry)), peer_(peer), timeout_(timeout) {}

  absl::Status Wait() override {
    absl::MutexLock lock(&exchange_->mutex);
    if (!exchange_->mutex.AwaitWithTimeout(absl::Condition(&entry_->done), timeout_)) {
      return absl::UnavailableError(
          absl::StrCat("no answer from rank ", peer_, " for ", absl::FormatDuration(timeout_)));
    }
    return entry_->status;
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  std::shared_ptr<Entry> entry_;
  int peer_;
  absl::Duration timeout_;
};

class InProcessTransport : public Transport {
 public:
  InProcessTransport(std::shared_ptr<Exchange> exchange, int rank, int world, absl::Duration timeout,
                     int ranks_a_machine)
      : exchange_(std::move(exchange)),
        rank_(rank),
        world_(world),
        timeout_(timeout),
        ranks_a_machine_(ranks_a_machine) {}

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  int machine_of(int rank) const override { return ranks_a_machine_ == 0 ? 0 : rank / ranks_a_machine_; }

  absl::StatusOr<std::unique_ptr<Message>> Send(int peer, uint32_t tag, const void* data, size_t num_bytes) override {
    auto entry = std::make_shared<Entry>(Entry{data, nullptr, num_bytes});
    absl::MutexLock lock(&exchange_->mutex);
    Exchange::Queue& queue = exchange_->queues[{rank_, peer, tag}];
    queue.sends.push_back(entry);
    exchange_->Match(queue);
    return std::make_unique<InProcessMessage>(exchange_, entry, peer, timeout_);
  }

  absl::StatusOr<std::unique_ptr<Message>> Receive(int peer, uint32_t tag, void* data, size_t num_bytes) override {
    auto entry = std::make_shared<Entry>(Entry{nullptr, data, num_bytes});
    absl::MutexLock lock(&exchange_->mutex);
    Exchange::Queue& queue = exchange_->queues[{peer, rank_, tag}];
    queue.receives.push_back(entry);
    exchange_->Match(queue);
    return std::make_unique<InProcessMessage>(exchange_, entry, peer, timeout_);
  }

  absl::Status WaitForAll() override {
    absl::MutexLock lock(&exchange_->mutex);
    const int64_t mine = ++exchange_->num_waits[rank_];
    const auto all_are_here = [this, mine]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(exchange_->mutex) {
      return *std::min_element(exchange_->num_waits.begin(), exchange_->num_waits.end()) >= mine;
    };
    exchange_->mutex.Await(absl::Condition(&all_are_here));
    return absl::OkStatus();
  }

 private:
  std::shared_ptr<Exchange> exchange_;
  int rank_;
  int world_;
  absl::Duration timeout_;
  int ranks_a_machine_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> MakeInProcessTransports(int world, absl::Duration timeout,
                                                                int ranks_a_machine) {
  auto exchange = std::make_shared<Exchange>();
  {
    absl::MutexLock lock(&exchange->mutex);
    exchange->num_waits.resize(world);
  }
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < world; ++rank) {
    transports.push_back(std::make_unique<InProcessTransport>(exchange, rank, world, timeout, ranks_a_machine));
  }
  return transports;
}

}  // namespace tacc::worker
