// A queue through which other threads wake a loop that waits in poll().
#ifndef TACC_WORKER_DAEMON_INBOX_H_
#define TACC_WORKER_DAEMON_INBOX_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"

namespace tacc::worker {

// Thread-safe.
template <typename Message>
class Inbox {
 public:
  Inbox() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}
  ~Inbox() {
    if (fd_ >= 0) close(fd_);
  }
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // The descriptor to poll: readable while messages wait, owned by the inbox. -1 when the system has none left.
  int fd() const { return fd_; }

  void Post(Message message) {
    absl::MutexLock lock(&mutex_);
    messages_.push_back(std::move(message));
    // The counter cannot overflow: it is read as often as the messages are taken.
    const uint64_t one = 1;
    (void)!write(fd_, &one, sizeof(one));
  }

  // Takes all messages, oldest first.
  std::vector<Message> Take() {
    absl::MutexLock lock(&mutex_);
    uint64_t count;
    (void)!read(fd_, &count, sizeof(count));
    return std::exchange(messages_, {});
  }

 private:
  const int fd_;
  absl::Mutex mutex_;
  std::vector<Message> messages_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_INBOX_H_
