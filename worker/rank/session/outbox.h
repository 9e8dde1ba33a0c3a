#ifndef TACC_WORKER_RANK_SESSION_OUTBOX_H_
#define TACC_WORKER_RANK_SESSION_OUTBOX_H_

#include <cstddef>
#include <deque>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace tacc::worker {

// What a client is still to be sent: nobody waits for one that does not read.
class Outbox {
 public:
  struct Message {
    std::string head, bytes;
  };
  // One that takes nothing for so long, or all of it more slowly than this on the whole, is late.
  static constexpr absl::Duration kPatience = absl::Seconds(30);
  static constexpr double kBytesPerSecond = 64 << 10;

  void Push(std::shared_ptr<const Message> message, absl::Time now);
  // Sends what the socket takes at once. False: the connection is broken.
  bool Send(int fd, absl::Time now);
  size_t size() const { return messages_.size(); }
  bool IsLate(absl::Time now) const;

 private:
  std::deque<std::shared_ptr<const Message>> messages_;
  size_t sent_ = 0;        // Of the first message.
  absl::Time last_taken_;  // When the client took something, or had nothing to take.
  absl::Time deadline_;    // For all messages.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_OUTBOX_H_
