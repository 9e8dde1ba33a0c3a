// /metrics, /healthz and /readyz over HTTP. Every value is read from the core at the time of the scrape.
#ifndef TACC_COORDINATOR_METRICS_METRICS_H_
#define TACC_COORDINATOR_METRICS_METRICS_H_

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/core/core.h"

namespace tacc::coordinator {

struct MetricsInput {
  std::string version;
  Time now;
  double commits = 0;
  double commit_seconds = 0;
};

// All families, in a fixed order. Jobs that ended more than `kEndedJobSeconds` ago are left out, so that labels do not
// pile up.
constexpr double kEndedJobSeconds = 900;
std::vector<prometheus::MetricFamily> CollectMetrics(const Core& core, const MetricsInput& input);

// Serves until it is destroyed.
class MetricsServer {
 public:
  using Collect = std::function<std::vector<prometheus::MetricFamily>()>;
  using Check = std::function<absl::Status()>;
  // `address` is HOST:PORT, port 0: a free one. `healthy` answers /healthz and `ready` /readyz, each on any thread:
  // 200, or 503 and why. FailedPrecondition: cannot listen there.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const std::string& address, Collect collect,
                                                              Check healthy, Check ready);
  ~MetricsServer();

  // HOST:PORT that it listens on.
  const std::string& address() const { return address_; }

 private:
  struct Impl;
  MetricsServer();
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_METRICS_METRICS_H_
