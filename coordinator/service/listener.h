// The port for clients and workers. gRPC's own listener (1.51) never accepts again after one accept that failed, as it
// does when the process has no descriptor left; this one goes on, and leaves descriptors for the process's own files.
#ifndef TACC_COORDINATOR_SERVICE_LISTENER_H_
#define TACC_COORDINATOR_SERVICE_LISTENER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "coordinator/service/local_socket.h"

namespace tacc::coordinator {

class Listener {
 public:
  // Listens on HOST:PORT (port 0: a free one), on all addresses that HOST stands for, or on unix:PATH, where only
  // processes of this user and of root are taken. FailedPrecondition: that cannot be.
  static absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address);
  // Ends the thread and closes the port.
  ~Listener();

  // HOST:PORT or unix:PATH.
  const std::string& address() const { return address_; }

  // From now on gives connections to `take`, which owns `fd` (not blocking, close on exec), on a thread of its own. A
  // connection whose descriptor would not be below `max_descriptor` is closed at once, and the log says so, unless
  // `make_room`, if there is one, closes another. Once.
  void Start(int max_descriptor, std::function<void(int listener_fd, int fd)> take,
             std::function<bool()> make_room = nullptr);

 private:
  Listener() = default;
  static absl::Status Failure(const std::string& address, const std::string& why);
  absl::Status ListenOnUnixSocket(const std::string& address);
  absl::Status ListenOnPort(const std::string& address);
  void Run();
  // Takes the connections that wait. Fails when that cannot be done now.
  absl::Status AcceptAll(int listener);
  // Waits for the end, at most so long. True: it is there.
  bool WaitForEnd(int milliseconds) const;
  // Of a Unix socket: whether the connection is of this user or root. Notes whose it is else.
  bool IsWelcome(int fd);
  // Says why connections were not taken, if it has not said so lately.
  void SayTroubles(const absl::Status& accepted);

  std::string address_;
  std::vector<int> sockets_;                   // That listen.
  std::unique_ptr<LocalSocket> local_socket_;  // In place of ports.
  int end_ = -1;                               // An eventfd.
  int max_descriptor_ = 0;
  std::function<void(int, int)> take_;
  std::function<bool()> make_room_;
  std::thread thread_;

  // Of the thread.
  // Since the log said so.
  int64_t num_refused_ = 0;
  int64_t num_strangers_ = 0;
  std::string last_stranger_;
  double last_said_ = 0;  // Steady; 0: never.
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_LISTENER_H_
