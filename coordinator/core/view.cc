#include "coordinator/core/view.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "machine/loopback.h"

namespace tacc::coordinator {
namespace {

// A client that ends when it likes asks for so many steps (tacc.accelerate).
constexpr int64_t kOpenEndedSteps = 1'000'000'000;
constexpr char kLooking[] = "workers look at the job's paths";

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

v1::Measured Measure(const AttemptState& attempt) {
  v1::Measured measured;
  std::vector<double> seconds, tokens, mfu, wait, communication, idle;
  for (const v1::StepMetrics& step : attempt.recent) {
    seconds.push_back(step.seconds());
    tokens.push_back(step.tokens_per_second());
    if (step.has_mfu()) mfu.push_back(step.mfu());
    if (step.has_device_idle_share()) idle.push_back(step.device_idle_share());
    wait.push_back(step.data_wait_seconds());
    communication.push_back(step.communication_seconds());
  }
  measured.set_step_seconds(Median(seconds));
  measured.set_tokens_per_second(Median(tokens));
  measured.set_mfu(Median(mfu));
  measured.set_data_wait_seconds(Median(wait));
  measured.set_communication_seconds(Median(communication));
  if (!idle.empty()) measured.set_device_idle_share(Median(idle));
  measured.set_num_steps(static_cast<int>(attempt.recent.size()));
  for (const RankState& rank : attempt.ranks) {
    measured.set_arena_bytes(std::max(measured.arena_bytes(), rank.arena_bytes));
    measured.set_peak_memory_bytes(std::max(measured.peak_memory_bytes(), rank.peak_memory_bytes));
    measured.set_device_memory_used_bytes(std::max(measured.device_memory_used_bytes(), rank.device_memory_used_bytes));
  }
  return measured;
}

const char* StateOf(const RankState& rank) {
  if (rank.ended.has_value()) return "exited";
  if (rank.ready) return "running";
  return rank.seen_sequence == 0 ? "starting" : "loading";
}

// By what their daemons said last.
bool WaitsForClient(const AttemptState& attempt) {
  return std::all_of(attempt.ranks.begin(), attempt.ranks.end(),
                     [](const RankState& rank) { return rank.sample.has_value() && rank.sample->waits_for_client(); });
}

std::string ReasonOf(const JobState& job) {
  switch (job.Phase()) {
    case v1::PHASE_WAITING:
      if (!job.check.has_value()) return job.reason;
      // What it looks for again, not the workers for which it had to wait since.
      return job.outage->reason.empty() ? kLooking : job.outage->reason;
    case v1::PHASE_STARTING:
      return job.check.has_value() ? kLooking : "ranks load and connect";
    case v1::PHASE_RESTARTING:
      if (!job.attempt->condemned.empty()) return job.attempt->condemned;
      return "a rank has ended; the others are being reaped";
    case v1::PHASE_CANCELLING:
      return *job.cancel == v1::CANCEL_MODE_CHECKPOINT && !job.attempt->Failing()
                 ? "the ranks write a checkpoint and stop"
                 : "the ranks are being killed";
    case v1::PHASE_RUNNING:
      return WaitsForClient(*job.attempt) ? "waits for its client" : "";
    default:
      return "";
  }
}

// "10.0.0.1, 10.0.0.2"; of many the first ones.
std::string Places(const std::set<std::string>& hosts) {
  constexpr size_t kShown = 4;
  const auto end = std::next(hosts.begin(), static_cast<std::ptrdiff_t>(std::min(kShown, hosts.size())));
  return absl::StrCat(absl::StrJoin(hosts.begin(), end, ", "),
                      hosts.size() > kShown ? absl::StrCat(" and ", hosts.size() - kShown, " more") : "");
}

// What anybody on the network can read of what the attempt's processes say to each other and to their client. Loopback
// is the machine's own.
std::vector<std::string> UnencryptedOf(const AttemptState& attempt) {
  std::set<std::string> rank_hosts, client_hosts;
  bool on_gpu = false;
  for (const RankState& rank : attempt.ranks) {
    on_gpu = on_gpu || rank.device_memory_used_bytes > 0;
    if (attempt.ranks.size() > 1 && !IsLoopback(rank.advertise)) rank_hosts.insert(rank.advertise);
    const std::string& host = rank.endpoint.host();
    if (!host.empty() && !IsLoopback(host)) client_hosts.insert(host);
  }
  std::vector<std::string> lines;
  if (!rank_hosts.empty()) {
    lines.push_back(absl::StrCat("between ranks: not encrypted (", on_gpu ? "NCCL, and Gloo over TCP" : "Gloo over TCP",
                                 ", at ", Places(rank_hosts), ")"));
  }
  if (!client_hosts.empty()) {
    lines.push_back(
        absl::StrCat("between the job's client and ranks: not encrypted (TCP, at ", Places(client_hosts), ")"));
  }
  return lines;
}

bool IsOpenEnded(const JobState& job) { return job.spec.data().has_client() && job.MaxSteps() >= kOpenEndedSteps; }

}  // namespace

v1::Job ViewJob(const JobState& job, const std::string& clear_address) {
  v1::Job view;
  view.set_id(job.id);
  view.set_name(job.spec.name());
  view.set_request_id(job.request_id);
  view.set_project(job.project);
  view.set_phase(job.Phase());
  view.set_reason(ReasonOf(job));
  *view.mutable_spec() = job.spec;
  view.set_step(job.step);
  // As many steps as the client makes are none that are known.
  view.set_max_steps(IsOpenEnded(job) ? 0 : job.MaxSteps());
  if (view.max_steps() > 0) view.set_percent(std::min(100.0, 100.0 * static_cast<double>(job.step) / view.max_steps()));
  if (job.last_step.has_value()) *view.mutable_last_step() = *job.last_step;
  if (job.last_eval.has_value()) *view.mutable_last_eval() = *job.last_eval;
  view.set_skipped_steps(job.skipped_steps);
  for (const v1::Restart& restart : job.restarts) *view.add_restarts() = restart;
  view.set_restarts_without_progress(job.restarts_without_progress);
  for (const v1::Checkpoint& checkpoint : job.checkpoints) *view.add_checkpoints() = checkpoint;
  if (!job.checkpoints.empty()) *view.mutable_last_checkpoint() = job.checkpoints.back();
  if (job.checkpoint_failure.has_value()) *view.mutable_checkpoint_failure() = *job.checkpoint_failure;
  view.set_exported_path(job.exported_path);
  view.set_checkpoint_dir(job.spec.checkpoint().dir());
  if (job.compiled) {
    *view.mutable_plan() = job.summary.plan;
    view.mutable_plan()->set_compile_seconds(job.compile.seconds());
  }
  if (!clear_address.empty()) {
    view.add_unencrypted(absl::StrCat("between the coordinator and its workers and clients: not encrypted (gRPC, at ",
                                      clear_address, ")"));
  }
  if (job.attempt.has_value()) {
    const AttemptState& attempt = *job.attempt;
    view.set_attempt(attempt.number);
    for (std::string& line : UnencryptedOf(attempt)) view.add_unencrypted(std::move(line));
    view.mutable_plan()->set_peak_flops_per_second(attempt.peak_flops_per_second);
    *view.mutable_measured() = Measure(attempt);
    view.mutable_measured()->mutable_attention()->Assign(job.attention.begin(), job.attention.end());
    view.mutable_measured()->mutable_products()->Assign(job.products.begin(), job.products.end());
    if (job.Phase() == v1::PHASE_RUNNING && !attempt.recent.empty() && !IsOpenEnded(job)) {
      view.set_eta_seconds(static_cast<double>(std::max<int64_t>(0, view.max_steps() - job.step)) *
                           view.measured().step_seconds());
    }
    for (size_t i = 0; i < attempt.ranks.size(); ++i) {
      const RankState& rank = attempt.ranks[i];
      v1::RankView* out = view.add_ranks();
      out->set_rank(static_cast<int>(i));
      out->set_worker(rank.worker);
      out->set_state(StateOf(rank));
      out->set_resumed_from(rank.resumed_from);
      out->set_arena_bytes(rank.arena_bytes);
      out->set_load_seconds(rank.load_seconds);
      out->set_peak_memory_bytes(rank.peak_memory_bytes);
      out->set_device_memory_used_bytes(rank.device_memory_used_bytes);
    }
  }
  view.set_submitted_time(job.submitted_time);
  view.set_started_time(job.started_time);
  view.set_ended_time(job.ended_time);
  if (job.ended.has_value()) {
    view.set_reason(job.ended->reason());
    view.set_report_pending(job.report.has_value());
    view.set_failure_code(job.ended->failure_code());
    *view.mutable_last_log_lines() = job.ended->last_log_lines();
  }
  return view;
}

v1::GetEndpointsResponse ViewEndpoints(const JobState& job) {
  v1::GetEndpointsResponse view;
  view.set_job(job.id);
  view.set_phase(job.Phase());
  view.set_reason(job.ended.has_value() ? job.ended->reason() : ReasonOf(job));
  if (!job.attempt.has_value()) return view;
  view.set_attempt(job.attempt->number);
  if (job.Phase() != v1::PHASE_RUNNING) return view;
  for (const RankState& rank : job.attempt->ranks) *view.add_endpoints() = rank.endpoint;
  return view;
}

v1::WorkerView ViewWorker(const Worker& worker, double now) {
  v1::WorkerView view;
  view.set_name(worker.name);
  const bool has_work = !worker.held.empty() || !worker.reserved.empty();
  view.set_state(!worker.Attached()                      ? "lost"
                 : !worker.trouble.empty()               ? "unusable"
                 : !worker.outdated.empty() && !has_work ? "outdated"
                 : worker.Free()                         ? "idle"
                                                         : "busy");
  view.set_trouble(!worker.trouble.empty() ? worker.trouble : worker.outdated);
  *view.mutable_device() = worker.device;
  view.set_advertise(worker.advertise);
  view.set_version(worker.version);
  if (!worker.held.empty()) {
    view.set_job(std::get<0>(*worker.held.begin()));
    view.set_attempt(std::get<1>(*worker.held.begin()));
    view.set_rank(std::get<2>(*worker.held.begin()));
  }
  view.set_seconds_since_heartbeat(now - worker.last_heard);
  return view;
}

}  // namespace tacc::coordinator
