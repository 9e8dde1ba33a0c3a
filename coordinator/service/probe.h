// Whether a client that comes now is served: each asks over a connection of its own, as that client would.
#ifndef TACC_COORDINATOR_SERVICE_PROBE_H_
#define TACC_COORDINATOR_SERVICE_PROBE_H_

#include <string>

#include "absl/status/status.h"

namespace tacc::coordinator {

// The port takes a connection and answers a call within `timeout_seconds`. Unavailable: it does not.
absl::Status ProbeAnswers(const std::string& address, double timeout_seconds);
// And the loop that decides does as well: it waits for no disk.
absl::Status ProbeDecides(const std::string& address, double timeout_seconds);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_PROBE_H_
