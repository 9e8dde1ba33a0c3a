// Calls to the coordinator with plain types; the only place of taccctl that knows gRPC.
#ifndef TACC_CLIENT_TACCCTL_SESSION_COORDINATOR_CLIENT_H_
#define TACC_CLIENT_TACCCTL_SESSION_COORDINATOR_CLIENT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "client/taccctl/session/context.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

class CoordinatorClient {
 public:
  // The coordinator at `address` (HOST:PORT). Does not connect yet. `interrupt` ends what is under way; it must outlive
  // the client.
  CoordinatorClient(const std::string& address, Interrupt* interrupt);
  ~CoordinatorClient();

  const std::string& address() const;

  // Each returns the coordinator's status; Unavailable says how to reach one, when there is none at the address;
  // Cancelled when an interrupt came while it waited: whether the coordinator has heard the request is not known then.

  // Sent again with the same request id, for up to 10 s, when the connection breaks.
  absl::StatusOr<v1::SubmitResponse> Submit(const v1::JobSpec& spec, const std::string& request_id);
  absl::StatusOr<v1::Job> Get(const std::string& job);
  absl::StatusOr<std::vector<v1::Job>> List(int limit);
  absl::StatusOr<v1::Job> Cancel(const std::string& job, v1::CancelMode mode);
  absl::StatusOr<v1::PlanResponse> Plan(const v1::JobSpec& spec);
  absl::StatusOr<std::vector<v1::WorkerView>> ListWorkers();
  absl::StatusOr<v1::GetVersionResponse> GetVersion();
  absl::Status Shutdown();

  // How many interrupts streams have ended for, or there were when the client was made. Each later one ends one stream,
  // also one that begins after it.
  int interrupts_seen() const { return interrupts_seen_; }

  // Streams, each message given to `take`; return when the stream ends, `deadline_seconds` (0: none) have passed, or
  // Interrupt is raised or aborted.
  absl::Status Watch(const v1::WatchRequest& request, double deadline_seconds,
                     const std::function<void(const v1::WatchResponse&)>& take);
  absl::Status Logs(const v1::LogsRequest& request, const std::function<void(const v1::LogsResponse&)>& take);

 private:
  struct Connection;
  int interrupts_seen_;
  std::unique_ptr<Connection> connection_;
};

// Waits between attempts to connect again: 200 ms, doubled each time up to 2 s.
class Backoff {
 public:
  // The next wait in seconds.
  double Next();
  // After a success.
  void Reset();

 private:
  double seconds_ = 0;
};

// The address that a command uses: --address, else TACC_ADDRESS, else that of `taccctl up`, else 127.0.0.1:7070.
// InvalidArgument when it is not HOST:PORT. Warns on stderr of what `taccctl up` started and has ended since.
absl::StatusOr<std::string> CoordinatorAddress(const GlobalOptions& options, const Context& context);

// What a command to paste begins with: taccctl, and --address where it was given.
std::string CommandStart(const GlobalOptions& options, const Context& context);

// A request id that nobody else makes.
std::string NewRequestId();

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_COORDINATOR_CLIENT_H_
