// The declarations of all metrics: name, help, unit and kind.
#ifndef TACC_METRICS_METRIC_H_
#define TACC_METRICS_METRIC_H_

#include <prometheus/metric_family.h>

#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tacc::metrics {

// Whose series a metric has: who serves it, with which labels.
enum class Scope { kBuild, kCoordinator, kState, kJob, kJobState, kJobRank, kWorker, kRank };
// Of which jobs. A page tells of each apart.
enum class Of { kAll, kExperts, kGpus, kFloat16 };

// The one declaration of a metric. What serves it, its help and docs/metrics.md follow.
struct Metric {
  const char* name;  // its unit last: _seconds, _bytes, _ratio, _total of a counter
  Scope scope;
  // Where its value stands. In a job's: fields of Job, or for kJobRank of RankView, one inside the other
  // (proto/tacc/v1/coordinator.proto); the number of entries of a list; a trailing `?` leaves out 0. In a rank's: an
  // event and its field (docs/contracts.md), or several with `|`, of which the last that came counts. Empty: whoever
  // serves it computes it.
  const char* source;
  const char* help;  // a sentence
  Of of = Of::kAll;

  bool is_counter() const { return absl::string_view(name).substr(absl::string_view(name).size() - 6) == "_total"; }
};

// All there are, in the order in which they are served.
absl::Span<const Metric> AllMetrics();

// Names of the labels of a scope's series, in order.
absl::Span<const char* const> LabelsOf(Scope scope);

// Collects what one scrape answers.
class Families {
 public:
  // `labels`: a value for each of the scope's labels.
  void Add(const Metric& metric, double value, const std::vector<std::string>& labels);
  // The metric that is named so; a name that is not declared ends the process.
  void Add(absl::string_view name, double value, const std::vector<std::string>& labels);
  // In the order of AllMetrics().
  std::vector<prometheus::MetricFamily> Take();

 private:
  std::map<const Metric*, prometheus::MetricFamily> families_;
};

// `page`, docs/metrics.md, with the rows of its tables written anew.
std::string WithTables(const std::string& page);

}  // namespace tacc::metrics

#endif  // TACC_METRICS_METRIC_H_
