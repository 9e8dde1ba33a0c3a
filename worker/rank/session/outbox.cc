#include "worker/rank/session/outbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace tacc::worker {

void Outbox::Push(std::shared_ptr<const Message> message, absl::Time now) {
  if (messages_.empty()) {
    last_taken_ = now;
    deadline_ = now + kPatience;
  }
  deadline_ += absl::Seconds((message->head.size() + message->bytes.size()) / kBytesPerSecond);
  messages_.push_back(std::move(message));
}

bool Outbox::Send(int fd, absl::Time now) {
  while (!messages_.empty()) {
    const Message& message = *messages_.front();
    const size_t head = std::min(sent_, message.head.size()), bytes = sent_ - head;
    iovec parts[] = {{const_cast<char*>(message.head.data()) + head, message.head.size() - head},
                     {const_cast<char*>(message.bytes.data()) + bytes, message.bytes.size() - bytes}};
    msghdr to = {};
    to.msg_iov = parts;
    to.msg_iovlen = 2;
    const ssize_t count = sendmsg(fd, &to, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno == EAGAIN;
    last_taken_ = now;
    sent_ += count;
    if (sent_ < message.head.size() + message.bytes.size()) continue;
    messages_.pop_front();
    sent_ = 0;
  }
  return true;
}

bool Outbox::IsLate(absl::Time now) const {
  return !messages_.empty() && (now > deadline_ || now > last_taken_ + kPatience);
}

}  // namespace tacc::worker
