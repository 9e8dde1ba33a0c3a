// The sockets of a rank's clients: who is at the other end, whether it is still there, and what comes along.
#ifndef TACC_WORKER_RANK_SESSION_CLIENT_SOCKET_H_
#define TACC_WORKER_RANK_SESSION_CLIENT_SOCKET_H_

#include <sys/types.h>

#include <string>

#include "absl/types/span.h"

namespace tacc::worker {

// A Unix socket at a path, which begins with a slash, or with an abstract name. It listens, for this user where it has
// a path, and does not block; -1 with errno.
int ListenLocally(const std::string& name, int backlog);

// Of a Unix socket: whether the peer is of this process's user, or root.
bool IsOwn(int fd);

// Of TCP: sends at once, and ends the connection within about a minute when the other machine has gone without a word.
void KeepAlive(int fd);

// The descriptor that may come along on a Unix socket.
struct GivenDescriptor {
  int fd = -1;
  // More than one came, or one that this process had no room for.
  bool is_unclear = false;
  GivenDescriptor() = default;
  GivenDescriptor(const GivenDescriptor&) = delete;
  GivenDescriptor& operator=(const GivenDescriptor&) = delete;
  ~GivenDescriptor() { Close(); }
  void Close();
};

// As recv. Of the descriptors that come along the first one is kept in `given`; the others are closed, and all where it
// is null.
ssize_t Receive(int fd, absl::Span<char> space, GivenDescriptor* given);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_CLIENT_SOCKET_H_
