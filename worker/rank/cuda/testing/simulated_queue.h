// Included by simulated_communication.cc: queues as threads, places in them, recordings.
#ifndef TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_QUEUE_H_
#define TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_QUEUE_H_

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "machine/clock.h"
#include "worker/rank/cuda/testing/simulated_communication.h"

namespace tacc::worker {

// How long a slow queue takes for each thing beside the thing itself.
inline constexpr absl::Duration kSlowness = absl::Microseconds(300);

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

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_QUEUE_H_
