// The whole coordinator in one process: state directory, loop, compiler, gRPC and HTTP.
#ifndef TACC_COORDINATOR_SERVICE_SERVER_H_
#define TACC_COORDINATOR_SERVICE_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "failpoint/failpoint.h"
#include "identity/authenticator.h"
#include "identity/call_limits.h"

namespace tacc::coordinator {

struct ServerOptions {
  std::string version;
  std::string listen = "127.0.0.1:7070";  // HOST:PORT; port 0: a free one. Or unix:PATH.
  std::string metrics_listen;             // HOST:PORT; empty: no HTTP.
  std::string state_dir;                  // Made when missing.
  std::string job_number_file;            // Empty: in state_dir.
  // The latter is needed for a port without TLS, and for metrics at an address that is not of the loopback.
  enum class Exposure { kClosed, kInsecure } exposure = Exposure::kClosed;
  std::string tls_dir;                       // Of identity/folder.h, of a server; empty: `listen` is without TLS.
  identity::CallLimits::Limits call_limits;  // Of each principal, with TLS.
  std::shared_ptr<identity::TokenReviewer> token_reviewer;  // Of tokens that the authority of tls_dir has not signed.
  std::string plan_binary;
  std::string data_binary;
  double compile_seconds = 120;  // That each of a compilation's tools may take.
  double lease_seconds = 10;
  double collective_timeout_seconds = 300;
  int max_open_files = 1024;             // That this process may have; most of them are for connections.
  int max_ended_jobs = 1000;             // Kept; of more the one that ended first is forgotten.
  std::vector<std::string> allow_paths;  // Folders in which files of jobs may be; empty: anywhere.
  int64_t max_upload_bytes = 0;          // Of uploads together; 0: half of their file system.
};

class Server {
 public:
  // `stop` is called, on any thread, when the process should end: `OK` a client asked for it, else why it cannot go on.
  // `failpoints` outlives the server. FailedPrecondition or InvalidArgument: it cannot start (address, state directory,
  // another coordinator).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options, Failpoints* failpoints,
                                                       std::function<void(const absl::Status&)> stop);
  // Ends all streams, stores what is decided, and stops. Ranks go on training.
  ~Server();

  // HOST:PORT or unix:PATH.
  const std::string& address() const { return address_; }
  const std::string& metrics_address() const { return metrics_address_; }

 private:
  struct Impl;
  Server();
  std::unique_ptr<Impl> impl_;
  std::string address_;
  std::string metrics_address_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_SERVER_H_
