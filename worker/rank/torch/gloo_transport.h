// Ranks connected by Gloo, which find each other by a TCPStore on rank 0.
#ifndef TACC_WORKER_RANK_TORCH_GLOO_TRANSPORT_H_
#define TACC_WORKER_RANK_TORCH_GLOO_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/protocol/endpoint.h"

namespace tacc::worker {

// Hosts the TCPStore of one attempt, on the advertised address only. Lives as long as the ranks talk. Internal: no free
// port, no such address.
class RendezvousServer {
 public:
  virtual ~RendezvousServer() = default;
  virtual int port() const = 0;
  static absl::StatusOr<std::unique_ptr<RendezvousServer>> Start(const std::string& advertise, int world,
                                                                 absl::Duration timeout);
};

struct GlooOptions {
  int rank = 0;
  int world = 1;
  int64_t attempt = 1;
  std::string advertise;   // The address that this rank listens on for its peers: an IP address.
  Endpoint store;          // Where rank 0's server listens.
  absl::Duration timeout;  // Of connecting once all are there, and of each wait for a peer.
};

// Point-to-point messages by LibTorch's c10d over Gloo's TCP transport: no copies, no threads beside Gloo's own. All
// ranks of the attempt call it, each once it is so far; waits without limit until all do (the coordinator knows which
// of them stands still), and returns when all are connected. Unavailable: a peer or the store did not answer in time.
absl::StatusOr<std::unique_ptr<Transport>> ConnectGloo(const GlooOptions& options);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TORCH_GLOO_TRANSPORT_H_
