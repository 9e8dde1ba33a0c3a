#include "worker/rank/protocol/run_record.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "machine/clock.h"
#include "worker/checkpoint/writer.h"

namespace tacc::worker {

RunRecord::RunRecord(const StartFile* start, EventWriter* events, FolderClaim* claim, int64_t steps_done,
                     int64_t num_samples)
    : start_(*start),
      events_(*events),
      claim_(claim),
      steps_done_(steps_done),
      epochs_per_step_(
          num_samples == 0 ? 0 : static_cast<double>(start->global_batch_size) / static_cast<double>(num_samples)) {
  Warn(Open());
}

absl::Status RunRecord::Open() {
  if (metrics_ != nullptr) return absl::OkStatus();
  last_open_ = SteadySeconds();
  if (start_.checkpoint_claimed) {
    if (absl::Status status = CheckClaimed(start_.checkpoint_dir); !status.ok()) return status;
  }
  absl::StatusOr<std::unique_ptr<RunMetrics>> metrics =
      RunMetrics::Open(start_.checkpoint_dir, steps_done_, WallSeconds(),
                       [claim = claim_] { return claim == nullptr ? absl::OkStatus() : claim->Check(); });
  if (!metrics.ok()) return metrics.status();
  metrics_ = *std::move(metrics);
  // The page of an earlier end.
  const absl::Status told = SayItGoesOn(start_.checkpoint_dir, start_.attempt, steps_done_);
  if (!told.ok()) TellReportFailed(told);
  absl::Status status;
  for (const nlohmann::ordered_json& point : waiting_) status.Update(metrics_->Add(point));
  waiting_.clear();
  TellRemark();
  return status;
}

void RunRecord::TellRemark() {
  const std::string remark = metrics_ == nullptr ? "" : metrics_->TakeRemark();
  if (!remark.empty()) events_.Warning("metrics_damaged", remark);
}

void RunRecord::Add(const nlohmann::json& event) {
  const int64_t step = event.value("step", int64_t{0});
  nlohmann::ordered_json point = {{"step", step}};
  if (epochs_per_step_ > 0) point["epoch"] = epochs_per_step_ * static_cast<double>(step);
  point["time"] = event.value("time", 0.0);
  for (const auto& [name, value] : event.items()) point.emplace(name, value);
  const double available = event.value("seconds", 0.0) * start_.peak_flops_per_second;
  const double flops = event.value("flops", start_.flops_per_step);
  if (event.contains("loss") && available > 0 && flops > 0) point["mfu"] = flops / available;
  if (metrics_ != nullptr) {
    Warn(metrics_->Add(point));
    return TellRemark();
  }
  waiting_.push_back(std::move(point));
  if (waiting_.size() > kMaxWaiting) waiting_.pop_front();
  if (SteadySeconds() - last_open_ >= RunMetrics::kFlushSeconds) Warn(Open());
}

void RunRecord::Sync() {
  Warn(Open());
  if (metrics_ != nullptr) Warn(metrics_->Sync());
  TellRemark();
}

void RunRecord::WriteReport(RunReport report) {
  report.dir = start_.checkpoint_dir;
  report.run = start_.run;
  report.max_steps = start_.max_steps;
  report.attempt = start_.attempt;
  // Not into what a lost mount has left.
  absl::Status written = start_.checkpoint_claimed ? CheckClaimed(start_.checkpoint_dir) : absl::OkStatus();
  if (written.ok()) written = ::tacc::worker::WriteReport(report);
  if (!written.ok()) return TellReportFailed(written);
  events_.Write(protocol::ReportEvent{.path = ReportPath(report.dir)});
}

void RunRecord::TellReportFailed(const absl::Status& status) {
  events_.Warning("report_failed", absl::StrCat("the page about the run could not be written: ", status.message()));
}

void RunRecord::Warn(const absl::Status& status) {
  if (status.ok() || has_warned_) return;
  has_warned_ = true;
  events_.Warning("metrics_failed", absl::StrCat("the metrics cannot be written to ", start_.checkpoint_dir, ": ",
                                                 status.message(), "; training goes on"));
}

}  // namespace tacc::worker
