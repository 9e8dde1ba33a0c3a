// A Unix socket that listens for processes of this coordinator's user.
#ifndef TACC_COORDINATOR_SERVICE_LOCAL_SOCKET_H_
#define TACC_COORDINATOR_SERVICE_LOCAL_SOCKET_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tacc::coordinator {

// In a folder of mode 0700, the socket itself 0600. Its file PATH.lock is locked as long as it listens: a socket that
// is there without that lock was left by a coordinator that was killed, and is replaced.
class LocalSocket {
 public:
  // Does not block. FailedPrecondition: its folder is another user's, or others may enter it; another coordinator or
  // process listens there; what is there is no socket.
  static absl::StatusOr<std::unique_ptr<LocalSocket>> Listen(const std::string& path, int backlog);
  // Removes the socket.
  ~LocalSocket();
  LocalSocket(const LocalSocket&) = delete;
  LocalSocket& operator=(const LocalSocket&) = delete;

  int fd() const { return fd_; }

 private:
  explicit LocalSocket(std::string path) : path_(std::move(path)) {}
  absl::Status TakeLock();
  // Removes what a killed coordinator has left.
  absl::Status RemoveLeft();
  absl::Status Bind(int backlog);

  const std::string path_;
  int lock_ = -1;
  int fd_ = -1;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_LOCAL_SOCKET_H_
