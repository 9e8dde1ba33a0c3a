// A thread for questions about file systems or a device, which may be slow or stuck.
#ifndef TACC_WORKER_DAEMON_ANSWERS_PATH_THREAD_H_
#define TACC_WORKER_DAEMON_ANSWERS_PATH_THREAD_H_

#include <deque>
#include <functional>
#include <thread>

#include "absl/synchronization/mutex.h"

namespace tacc::worker {

// Runs functions on its thread, one after the other. Thread-safe. Destroying it waits for the running one and drops the
// others.
class PathThread {
 public:
  PathThread() : thread_([this] { Loop(); }) {}
  ~PathThread() {
    {
      absl::MutexLock lock(&mutex_);
      is_ending_ = true;
    }
    thread_.join();
  }
  PathThread(const PathThread&) = delete;
  PathThread& operator=(const PathThread&) = delete;

  // Nothing runs, and nothing waits to run.
  bool IsIdle() {
    absl::MutexLock lock(&mutex_);
    return queue_.empty() && !is_running_;
  }

  void Run(std::function<void()> function) {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(function));
  }

 private:
  void Loop() {
    while (true) {
      std::function<void()> next;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(
            +[](PathThread* self) ABSL_NO_THREAD_SAFETY_ANALYSIS { return self->is_ending_ || !self->queue_.empty(); },
            this));
        if (is_ending_) return;
        next = std::move(queue_.front());
        queue_.pop_front();
        is_running_ = true;
      }
      next();
      absl::MutexLock lock(&mutex_);
      is_running_ = false;
    }
  }
  absl::Mutex mutex_;
  std::deque<std::function<void()>> queue_ ABSL_GUARDED_BY(mutex_);
  bool is_running_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // Last: it uses the others.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_PATH_THREAD_H_
