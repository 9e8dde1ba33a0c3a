#include "worker/daemon/metrics_server.h"

#include <CivetServer.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include <exception>
#include <functional>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "machine/clock.h"

namespace tacc::worker {
namespace {

// A connection that asks nothing holds a thread for so long, so tens of them cost whoever asks no more than that. The
// same in coordinator/metrics/metrics_server.cc.
constexpr char kThreads[] = "32";
constexpr char kRequestMilliseconds[] = "1000";

using Labels = std::vector<prometheus::ClientMetric::Label>;

// Numbers of a rank's events that are worth a series: event and field, name, help.
struct RankMetric {
  const char* number;
  const char* name;
  const char* help;
};
constexpr char kDeviceMemory[] = "tacc_rank_device_memory_bytes";
constexpr char kDeviceMemoryHelp[] = "GPU memory that the rank's process holds.";
// Of two numbers for one series, one after the other, the second is the newer.
constexpr RankMetric kRankMetrics[] = {
    {"step.loss", "tacc_rank_loss", "Training loss of the last step, nats per target token."},
    {"eval.eval_loss", "tacc_rank_eval_loss", "Loss of the last evaluation on held-out data, nats per target token."},
    {"step.grad_norm", "tacc_rank_gradient_norm", "Global norm of the last step's gradient, before clipping."},
    {"step.learning_rate", "tacc_rank_learning_rate", "Learning rate of the last step."},
    {"step.seconds", "tacc_rank_step_seconds", "Duration of the last step."},
    {"step.data_wait_seconds", "tacc_rank_data_wait_seconds", "Time that the last step waited for data."},
    {"step.communication_seconds", "tacc_rank_communication_seconds",
     "Time that the last step waited for collectives and other stages."},
    {"step.tokens_per_second", "tacc_rank_tokens_per_second", "Tokens per second of the last step, over all ranks."},
    {"ready.arena_bytes", "tacc_rank_arena_bytes", "Size of the rank's memory arena."},
    {"step.device_idle_share", "tacc_rank_device_idle_ratio",
     "Share of the last step in which nothing ran on the rank's GPU."},
    {"ready.device_memory_used_bytes", kDeviceMemory, kDeviceMemoryHelp},
    {"step.device_memory_used_bytes", kDeviceMemory, kDeviceMemoryHelp},
};

void AddFamily(const std::string& name, const std::string& help, prometheus::MetricType type, double value,
               const Labels& labels, std::vector<prometheus::MetricFamily>* families) {
  prometheus::ClientMetric metric;
  metric.label = labels;
  if (type == prometheus::MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  families->push_back({name, help, type, {std::move(metric)}});
}

std::vector<prometheus::MetricFamily> Families(const DaemonSnapshot& snapshot) {
  std::vector<prometheus::MetricFamily> families;
  const Labels worker = {{"worker", snapshot.worker}};
  const auto gauge = [&](const char* name, const char* help, double value, const Labels& labels) {
    AddFamily(name, help, prometheus::MetricType::Gauge, value, labels, &families);
  };
  const auto counter = [&](const char* name, const char* help, double value) {
    AddFamily(name, help, prometheus::MetricType::Counter, value, worker, &families);
  };
  gauge("tacc_build_info", "1; the label tells the version.", 1, {{"version", snapshot.version}});
  gauge("tacc_worker_attached", "1 while registered with the coordinator.", snapshot.is_attached ? 1 : 0, worker);
  gauge("tacc_worker_threads", "Threads that a rank here gets.", snapshot.num_threads, worker);
  gauge("tacc_worker_memory_bytes", "Memory that a rank here may use.", static_cast<double>(snapshot.memory_bytes),
        worker);
  gauge("tacc_worker_device_usable", "1 while ranks can run on the device.", snapshot.is_device_usable ? 1 : 0, worker);
  gauge("tacc_worker_held_report_bytes", "Reports of ranks that the coordinator has not acknowledged.",
        static_cast<double>(snapshot.held_report_bytes), worker);
  counter("tacc_worker_dropped_reports_total", "Log lines and step metrics dropped because too many were held.",
          static_cast<double>(snapshot.dropped_reports));
  counter("tacc_worker_ranks_started_total", "Rank processes started.", static_cast<double>(snapshot.ranks_started));
  gauge("tacc_worker_rank_running", "1 while a rank process runs here.", snapshot.job.empty() ? 0 : 1, worker);
  if (snapshot.job.empty()) return families;
  const Labels rank = {
      {"worker", snapshot.worker}, {"training_job", snapshot.job}, {"rank", absl::StrCat(snapshot.rank)}};
  gauge("tacc_rank_step", "Updates done, as the rank's status block says.", static_cast<double>(snapshot.steps_done),
        rank);
  gauge("tacc_rank_still_seconds", "How long the rank has been in the same instruction.", snapshot.still_seconds, rank);
  gauge("tacc_rank_peak_memory_bytes", "Most memory that the rank's process has had resident.",
        static_cast<double>(snapshot.peak_memory_bytes), rank);
  for (const RankMetric& metric : kRankMetrics) {
    const auto it = snapshot.rank_metrics.find(metric.number);
    if (it == snapshot.rank_metrics.end()) continue;
    if (families.back().name == metric.name) families.pop_back();
    gauge(metric.name, metric.help, it->second, rank);
  }
  return families;
}

class Handler : public CivetHandler {
 public:
  struct Answer {
    int code = 200;
    std::string type = "text/plain; charset=utf-8";
    std::string body;
  };
  explicit Handler(std::function<Answer()> answer) : answer_(std::move(answer)) {}

  bool handleGet(CivetServer* server, mg_connection* connection) override {
    const Answer answer = answer_();
    mg_printf(connection, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
              answer.code, answer.code == 200 ? "OK" : "Service Unavailable", answer.type.c_str(), answer.body.size());
    mg_write(connection, answer.body.data(), answer.body.size());
    return true;
  }

 private:
  const std::function<Answer()> answer_;
};

}  // namespace

struct MetricsServer::Impl {
  DaemonSnapshot Get() {
    absl::MutexLock lock(&mutex);
    return snapshot;
  }
  std::string address;
  absl::Mutex mutex;
  DaemonSnapshot snapshot ABSL_GUARDED_BY(mutex);
  std::vector<std::unique_ptr<Handler>> handlers;
  std::unique_ptr<CivetServer> server;  // Ends before what its handlers use.
};

MetricsServer::MetricsServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MetricsServer::~MetricsServer() = default;

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const std::string& address,
                                                                    double max_silence_seconds) {
  auto impl = std::make_unique<Impl>();
  const std::vector<std::string> options = {
      "listening_ports",   address, "num_threads", kThreads, "request_timeout_ms", kRequestMilliseconds,
      "enable_keep_alive", "no"};
  try {
    impl->server = std::make_unique<CivetServer>(options);
  } catch (const std::exception&) {
    return absl::FailedPreconditionError(absl::StrCat(
        "--metrics-listen ", address, ": cannot listen there; is it HOST:PORT of this machine, and the port free?"));
  }
  const auto serve = [raw = impl.get()](const std::string& path, std::function<Handler::Answer()> answer) {
    raw->handlers.push_back(std::make_unique<Handler>(std::move(answer)));
    raw->server->addHandler(path, raw->handlers.back().get());
  };
  serve("/metrics", [raw = impl.get()] {
    std::ostringstream text;
    prometheus::TextSerializer().Serialize(text, Families(raw->Get()));
    return Handler::Answer{200, "text/plain; version=0.0.4; charset=utf-8", text.str()};
  });
  serve("/healthz", [raw = impl.get(), max_silence_seconds] {
    const double silence = SteadySeconds() - raw->Get().loop_time;
    if (silence <= max_silence_seconds) return Handler::Answer{200, "text/plain", "ok\n"};
    return Handler::Answer{503, "text/plain", absl::StrCat("the daemon's loop has not turned for ", silence, " s\n")};
  });
  serve("/readyz", [raw = impl.get()] {
    const DaemonSnapshot snapshot = raw->Get();
    if (!snapshot.is_attached) return Handler::Answer{503, "text/plain", "not registered with the coordinator\n"};
    if (!snapshot.is_device_usable) return Handler::Answer{503, "text/plain", "the device cannot be used\n"};
    return Handler::Answer{200, "text/plain", "ready\n"};
  });
  const std::vector<int> ports = impl->server->getListeningPorts();
  impl->address = absl::StrCat(address.substr(0, address.rfind(':')), ":", ports.empty() ? 0 : ports.front());
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(impl)));
}

const std::string& MetricsServer::address() const { return impl_->address; }

void MetricsServer::Publish(DaemonSnapshot snapshot) {
  absl::MutexLock lock(&impl_->mutex);
  impl_->snapshot = std::move(snapshot);
}

}  // namespace tacc::worker
