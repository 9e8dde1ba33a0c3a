#include "worker/daemon/messages.h"

#include <random>

#include "absl/strings/str_format.h"
#include "text/utf8.h"

namespace tacc::worker {

std::string NewInstance() {
  std::random_device device;
  return absl::StrFormat("%08x%08x", device(), device());
}

RankKey FromRankId(const v1::RankId& id) { return {id.job(), id.attempt(), id.rank()}; }

v1::RankId ToRankId(const RankKey& key) {
  v1::RankId id;
  id.set_job(key.job);
  id.set_attempt(key.attempt);
  id.set_rank(key.rank);
  return id;
}

v1::RankReport ToRankReport(const Report& report) {
  v1::RankReport message;
  *message.mutable_id() = ToRankId(report.key);
  message.set_sequence(report.sequence);
  switch (report.kind) {
    case ReportKind::kEvent:
    case ReportKind::kStepMetric:
      message.set_event(report.event);
      break;
    case ReportKind::kLog:
      message.mutable_log()->set_time(report.time);
      for (const std::string& line : report.log_lines) message.mutable_log()->add_lines(line);
      break;
    case ReportKind::kExit: {
      v1::RankExited* exited = message.mutable_exited();
      if (report.exit.exit_code.has_value()) exited->set_exit_code(*report.exit.exit_code);
      exited->set_signal(report.exit.signal);
      for (const std::string& line : report.exit.last_log_lines) exited->add_last_log_lines(line);
      exited->set_start_error(ValidUtf8(report.exit.start_error));
      exited->set_killed(report.exit.killed);
      exited->set_time(report.time);
      break;
    }
  }
  return message;
}

v1::RankSample ToRankSample(const RankKey& key, const RankHost::Sample& sample) {
  v1::RankSample message;
  *message.mutable_id() = ToRankId(key);
  message.set_step(sample.status.step + 1);
  message.set_call(static_cast<int32_t>(sample.status.call));
  message.set_node(static_cast<int32_t>(sample.status.node));
  const Activity activity = sample.status.activity;
  message.set_waits_for_ranks(activity == Activity::kInCollective || activity == Activity::kMeeting);
  message.set_waits_for_client(activity == Activity::kWaitingForClient);
  message.set_activity(ActivityText(activity));
  message.set_still_seconds(sample.still_seconds);
  message.set_peak_memory_bytes(sample.peak_memory_bytes);
  return message;
}

}  // namespace tacc::worker
