#ifndef TACC_COORDINATOR_METRICS_METRICS_H_
#define TACC_COORDINATOR_METRICS_METRICS_H_

#include <prometheus/metric_family.h>

#include <string>
#include <vector>

#include "coordinator/core/core.h"

namespace tacc::coordinator {

struct MetricsInput {
  std::string version;
  Time now;
  double commits = 0;
  double commit_seconds = 0;
  double upload_received_bytes = 0;
  double upload_sent_bytes = 0;
};

// What the coordinator serves (metrics/metric.h), read from the core now. Jobs that ended more than `kEndedJobSeconds`
// ago are left out, so that labels do not pile up.
constexpr double kEndedJobSeconds = 900;
std::vector<prometheus::MetricFamily> CollectMetrics(const Core& core, const MetricsInput& input);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_METRICS_METRICS_H_
