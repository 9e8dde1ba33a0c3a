// The daemon's connection to the coordinator: dials, registers, and dials again when the stream breaks. No thread of
// its own: gRPC's threads post what happens, and the daemon's loop calls in.
#ifndef TACC_WORKER_DAEMON_COORDINATOR_LINK_H_
#define TACC_WORKER_DAEMON_COORDINATOR_LINK_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "identity/credentials.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::worker {

// Not thread-safe: one loop owns it. Times are steady seconds.
class CoordinatorLink {
 public:
  struct Event {
    enum class Kind {
      kRegistered,    // `response` is Registered. Everything not acknowledged is to be sent again.
      kMessage,       // `response` is any other message.
      kDisconnected,  // The stream broke, or could not be made: `status` says why. It dials again by itself.
      kRefused,       // The coordinator will never take this daemon: `status` says why. It does not dial again.
    };
    Kind kind;
    v1::AttachResponse response;
    absl::Status status;
  };

  // `address` is HOST:PORT or unix:PATH. gRPC's threads call `wake` whenever Poll has something to do.
  CoordinatorLink(const std::string& address, const identity::Tls& tls, std::function<void()> wake);
  // Ends the stream; waits for gRPC to let go of it.
  ~CoordinatorLink();
  CoordinatorLink(const CoordinatorLink&) = delete;
  CoordinatorLink& operator=(const CoordinatorLink&) = delete;

  // Does what is due at `now` and returns what happened, oldest first. Calls `registration` when a stream opens.
  std::vector<Event> Poll(double now, const std::function<v1::Register()>& registration);

  // True when registered and the stream takes a message now.
  bool CanSend() const;
  // Sends one message. CanSend() must be true.
  void Send(v1::AttachRequest message);

  bool IsRegistered() const;
  // The time at which Poll is due without a wake, to dial again or to give up a handshake. Infinity: none.
  double NextDue() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_COORDINATOR_LINK_H_
