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

namespace tacc::coordinator {

class Listener {
 public:
  // Listens on HOST:PORT (port 0: a free one), on all addresses that HOST stands for. FailedPrecondition: that cannot
  // be.
  static absl::StatusOr<std::unique_ptr<Listener>> Listen(const std::string& address);
  // Ends the thread and closes the port.
  ~Listener();

  // HOST:PORT.
  const std::string& address() const { return address_; }

  // From now on gives connections to `take`, which owns `fd` (not blocking, close on exec), on a thread of its own. A
  // connection whose descriptor would not be below `max_descriptor` is closed at once, and the log says so. Once.
  void Start(int max_descriptor, std::function<void(int listener_fd, int fd)> take);

 private:
  Listener() = default;
  void Run();
  // Takes the connections that wait. Fails when that cannot be done now.
  absl::Status AcceptAll(int listener);
  // Waits for the end, at most so long. True: it is there.
  bool WaitForEnd(int milliseconds) const;

  std::string address_;
  std::vector<int> sockets_;
  int end_ = -1;  // An eventfd.
  int max_descriptor_ = 0;
  std::function<void(int, int)> take_;
  std::thread thread_;

  // Of the thread.
  int64_t num_refused_ = 0;  // Since the log said so.
  double last_said_ = 0;     // Steady; 0: never.
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_LISTENER_H_
