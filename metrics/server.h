#ifndef TACC_METRICS_SERVER_H_
#define TACC_METRICS_SERVER_H_

#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tacc::metrics {

// /metrics for Prometheus, /healthz and /readyz, over HTTP until it is destroyed.
class Server {
 public:
  using Collect = std::function<std::vector<prometheus::MetricFamily>()>;
  using Check = std::function<absl::Status()>;
  // `address` is HOST:PORT, port 0: a free one. `healthy` answers /healthz and `ready` /readyz: 200, or 503 and why.
  // All three are called on any thread, by several at once. FailedPrecondition: cannot listen there.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const std::string& address, Collect collect, Check healthy,
                                                       Check ready);
  ~Server();

  // HOST:PORT that it listens on.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  Server();
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace tacc::metrics

#endif  // TACC_METRICS_SERVER_H_
