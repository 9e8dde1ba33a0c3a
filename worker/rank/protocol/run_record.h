#ifndef TACC_WORKER_RANK_PROTOCOL_RUN_RECORD_H_
#define TACC_WORKER_RANK_PROTOCOL_RUN_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "worker/rank/protocol/events.h"
#include "worker/rank/protocol/folder_claim.h"
#include "worker/rank/protocol/start_file.h"
#include "worker/run_folder/run_metrics.h"
#include "worker/run_folder/run_report.h"

namespace tacc::worker {

// What rank 0 keeps of the run in its folder while it trains. What cannot be written stops nothing: one warning says
// so, and writing is tried again. Points that come before the files can be opened wait in memory, the newest
// kMaxWaiting.
class RunRecord {
 public:
  static constexpr size_t kMaxWaiting = 100'000;

  // Goes on after `steps_done` updates; `num_samples`: of the training data (0: not known, and points have no epoch).
  // `start`, `events` and `claim` (null: nobody has claimed the folder) must outlive the object.
  RunRecord(const StartFile* start, EventWriter* events, FolderClaim* claim, int64_t steps_done, int64_t num_samples);

  // A point of the metrics: the fields of an event `step` or `eval`, with its time. Adds "epoch", and "mfu" of a step
  // where the start file has what it takes.
  void Add(const nlohmann::json& event);

  // The page at the end of the run or of an attempt that failed, and its event. Of `report` what this object knows
  // itself may be left out.
  void WriteReport(RunReport report);

  // To the disk: before a checkpoint is complete, and at the end.
  void Sync();

 private:
  // Opens the files, and adds what waits for them. Nothing when they are open.
  absl::Status Open();
  void Warn(const absl::Status& status);
  void TellReportFailed(const absl::Status& status);
  // A warning of what was found wrong with the files.
  void TellRemark();

  const StartFile& start_;
  EventWriter& events_;
  FolderClaim* const claim_;
  const int64_t steps_done_;
  const double epochs_per_step_;
  std::unique_ptr<RunMetrics> metrics_;  // Null: the files could not be opened.
  std::deque<nlohmann::ordered_json> waiting_;
  double last_open_ = 0;  // When it was tried, as SteadySeconds().
  bool has_warned_ = false;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_RUN_RECORD_H_
