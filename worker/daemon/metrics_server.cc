#include "worker/daemon/metrics_server.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "machine/clock.h"
#include "metrics/metric.h"
#include "metrics/server.h"

namespace tacc::worker {
namespace {

std::vector<prometheus::MetricFamily> Collect(const DaemonSnapshot& snapshot) {
  metrics::Families families;
  const std::vector<std::string> worker = {snapshot.worker};
  families.Add("tacc_build_info", 1, {snapshot.version});
  families.Add("tacc_worker_attached", snapshot.is_attached ? 1 : 0, worker);
  families.Add("tacc_worker_threads", snapshot.num_threads, worker);
  families.Add("tacc_worker_memory_bytes", static_cast<double>(snapshot.memory_bytes), worker);
  families.Add("tacc_worker_device_usable", snapshot.is_device_usable ? 1 : 0, worker);
  families.Add("tacc_worker_held_report_bytes", static_cast<double>(snapshot.held_report_bytes), worker);
  families.Add("tacc_worker_dropped_reports_total", static_cast<double>(snapshot.dropped_reports), worker);
  families.Add("tacc_worker_ranks_started_total", static_cast<double>(snapshot.ranks_started), worker);
  families.Add("tacc_worker_rank_running", snapshot.job.empty() ? 0 : 1, worker);
  if (snapshot.job.empty()) return families.Take();
  const std::vector<std::string> rank = {snapshot.worker, snapshot.job, absl::StrCat(snapshot.rank)};
  families.Add("tacc_rank_step", static_cast<double>(snapshot.steps_done), rank);
  families.Add("tacc_rank_still_seconds", snapshot.still_seconds, rank);
  families.Add("tacc_rank_peak_memory_bytes", static_cast<double>(snapshot.peak_memory_bytes), rank);
  for (const metrics::Metric& metric : metrics::AllMetrics()) {
    if (metric.scope != metrics::Scope::kRank) continue;
    std::optional<double> newest;
    for (const absl::string_view number : absl::StrSplit(metric.source, '|')) {
      const auto it = snapshot.rank_metrics.find(std::string(number));
      if (it != snapshot.rank_metrics.end()) newest = it->second;
    }
    if (newest.has_value()) families.Add(metric, *newest, rank);
  }
  return families.Take();
}

}  // namespace

struct MetricsServer::Impl {
  DaemonSnapshot Get() {
    absl::MutexLock lock(&mutex);
    return snapshot;
  }
  absl::Mutex mutex;
  DaemonSnapshot snapshot ABSL_GUARDED_BY(mutex);
  std::unique_ptr<metrics::Server> server;  // Ends before what it reads.
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    double max_silence_seconds) {
  auto impl = std::make_unique<Impl>();
  const auto healthy = [raw = impl.get(), max_silence_seconds] {
    const double silence = SteadySeconds() - raw->Get().loop_time;
    if (silence <= max_silence_seconds) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("the daemon's loop has not turned for ", silence, " s"));
  };
  const auto ready = [raw = impl.get()] {
    const DaemonSnapshot snapshot = raw->Get();
    if (!snapshot.is_attached) return absl::UnavailableError("not registered with the coordinator");
    if (!snapshot.is_device_usable) return absl::UnavailableError("the device cannot be used");
    return absl::OkStatus();
  };
  absl::StatusOr<std::unique_ptr<metrics::Server>> server =
      metrics::Server::Start(address, [raw = impl.get()] { return Collect(raw->Get()); }, healthy, ready);
  if (!server.ok()) return server.status();
  impl->server = *std::move(server);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

const std::string& MetricsServer::address() const { return impl_->server->address(); }

void MetricsServer::Publish(DaemonSnapshot snapshot) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->snapshot = std::move(snapshot);
}

}  // namespace tacc::worker
