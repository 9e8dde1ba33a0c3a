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
#include "identity/credentials.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

// Where a coordinator is, and how it is talked to.
struct Endpoint {
  std::string address;  // HOST:PORT.
  identity::Tls tls;
};

class CoordinatorClient {
 public:
  // Does not connect yet. `interrupt` ends what is under way; it must outlive the client.
  CoordinatorClient(const Endpoint& endpoint, Interrupt* interrupt);
  // Of a coordinator that this process, or `taccctl up`, has started: without TLS.
  CoordinatorClient(const std::string& address, Interrupt* interrupt)
      : CoordinatorClient(Endpoint{address, {}}, interrupt) {}
  ~CoordinatorClient();

  const Endpoint& endpoint() const;

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

  // Between two tries of a call, so many seconds or until the coordinator is there again: gRPC connects only while
  // somebody waits for it. Returns whether it was interrupted, as Interrupt::WaitFor.
  bool WaitToReconnect(double seconds, int seen);

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

// The coordinator that a command uses: at --address, else TACC_ADDRESS, else that of `taccctl up` (not with --tls-dir
// or --token-file), else 127.0.0.1:7070. By TLS with the folder --tls-dir or TACC_TLS_DIR, and the token in
// --token-file or TACC_TOKEN_FILE if one is given; that of `taccctl up` without. InvalidArgument when the address is
// neither HOST:PORT nor unix:PATH, the folder or the file is of no use, or a token would go without TLS. Warns on
// stderr of what `taccctl up` started and has ended since.
absl::StatusOr<Endpoint> FindCoordinator(const GlobalOptions& options, const Context& context);

// What a command to paste begins with: taccctl, and those options that say which coordinator and how, where they
// were given.
std::string CommandStart(const GlobalOptions& options, const Context& context);

// A request id that nobody else makes.
std::string NewRequestId();

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_COORDINATOR_CLIENT_H_
