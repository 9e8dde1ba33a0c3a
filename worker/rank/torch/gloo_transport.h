// Ranks connected by Gloo, which find each other by a store of rank 0: over TCP, or a file of one machine.
#ifndef TACC_WORKER_RANK_TORCH_GLOO_TRANSPORT_H_
#define TACC_WORKER_RANK_TORCH_GLOO_TRANSPORT_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/protocol/endpoint.h"

namespace tacc::worker {

// The store of one attempt. Lives as long as the ranks talk.
class RendezvousServer {
 public:
  struct Options {
    std::string advertise;     // The store is a TCPStore that listens here and nowhere else,
    std::string local_folder;  // or, if that is set, a new file in this folder, which only this user may enter.
    int world = 1;
    absl::Duration timeout;
  };
  virtual ~RendezvousServer() = default;
  // For the ranks of the attempt.
  const Endpoint& endpoint() const { return endpoint_; }
  // Internal: no free port, no such address, the file cannot be made.
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(const Options& options);

 protected:
  explicit RendezvousServer(Endpoint endpoint) : endpoint_(std::move(endpoint)) {}

 private:
  const Endpoint endpoint_;
};

struct GlooOptions {
  int rank = 0;
  int world = 1;
  int64_t attempt = 1;
  std::string advertise;   // The address that this rank listens on for its peers: an IP address.
  Endpoint store;          // Of rank 0's server.
  absl::Duration timeout;  // Of connecting once all are there, and of each wait for a peer.
};

// Point-to-point messages by LibTorch's c10d over Gloo's TCP transport: no copies, no threads beside Gloo's own. All
// ranks of the attempt call it, each once it is so far; waits without limit until all do (the coordinator knows which
// of them stands still), and returns when all are connected. Unavailable: a peer or the store did not answer in
// time; with a file as the store, another user has connected to this rank meanwhile.
absl::StatusOr<std::unique_ptr<Transport>> ConnectGloo(const GlooOptions& options);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TORCH_GLOO_TRANSPORT_H_
