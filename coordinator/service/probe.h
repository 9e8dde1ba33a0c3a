// Whether a client that comes now is served: each asks over a connection of its own, as that client would.
#ifndef TACC_COORDINATOR_SERVICE_PROBE_H_
#define TACC_COORDINATOR_SERVICE_PROBE_H_

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "identity/credentials.h"

namespace tacc::coordinator {

// The port takes a connection and answers a call within `timeout_seconds`. Unavailable: it does not.
absl::Status ProbeAnswers(const std::string& address, const identity::Tls& tls, double timeout_seconds);
// And the loop that decides does as well: it waits for no disk.
absl::Status ProbeDecides(const std::string& address, const identity::Tls& tls, double timeout_seconds);

// What a probe found holds for a moment: strangers ask for it, and each probe is a call, of which the coordinator, as
// others, may make so many. Thread-safe.
class SharedProbe {
 public:
  static constexpr double kSeconds = 0.2;
  // `clock` gives steady seconds.
  SharedProbe(std::function<absl::Status()> probe, std::function<double()> clock)
      : probe_(std::move(probe)), clock_(std::move(clock)) {}

  // At most kSeconds old. Who asks while another one probes waits for that.
  absl::Status Ask();

 private:
  const std::function<absl::Status()> probe_;
  const std::function<double()> clock_;
  std::mutex mutex_;
  std::optional<absl::Status> found_;
  double found_at_ = 0;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_PROBE_H_
