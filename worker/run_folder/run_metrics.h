#ifndef TACC_WORKER_RUN_FOLDER_RUN_METRICS_H_
#define TACC_WORKER_RUN_FOLDER_RUN_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "worker/run_folder/append_file.h"

namespace tacc::worker {

// The history of a run in its folder: DIR/metrics.jsonl, a JSON object a line, and DIR/tensorboard/, a file an attempt.
// Points come in the order of steps, of each step at most one of training and then one of evaluation. Attempts follow
// each other: each begins after the step of the checkpoint that it resumes from, and what was written of later steps
// goes, so the files hold every point once, whatever became of the attempts before.
//
// Not thread-safe. One writer at a time.
class RunMetrics {
 public:
  // Takes up the files after `steps_done` updates: drops lines of later steps and a last line that was cut short, and
  // begins an event file (`time`: seconds since the epoch), which is gone again after an error. Where something else
  // than points is among what is dropped, all of it goes to the end of DIR/metrics.jsonl.damaged. The files' entries in
  // their folders are on the disk then. Errors: as ErrnoStatus, the file named. `may_write`, if set, is asked before
  // each write, this one too; its error is that of the write.
  static absl::StatusOr<std::unique_ptr<RunMetrics>> Open(const std::string& dir, int64_t steps_done, double time,
                                                          std::function<absl::Status()> may_write = nullptr);

  // Adds `point`: with "step", "time", and numbers by name, of an evaluation one is "eval_loss"; numbers that are not
  // finite become null. It is in the files within about kFlushSeconds, as long as points come. Errors: of writing;
  // nothing is lost, later calls try again.
  absl::Status Add(const nlohmann::ordered_json& point);

  // Forces all points to the disk. A checkpoint that is complete only then never knows more steps than the files.
  absl::Status Sync();

  static constexpr double kFlushSeconds = 2;

  // What was found wrong with the files since this was last asked, for people: damage, or that they were removed or
  // replaced while they were open; new ones have been begun then. Empty: nothing.
  std::string TakeRemark() { return std::exchange(remark_, ""); }

 private:
  RunMetrics(std::string dir, std::unique_ptr<AppendFile> lines, std::unique_ptr<AppendFile> events,
             std::function<absl::Status()> may_write);
  // Before each write: sees that it may be, and that the files are where they are looked for.
  absl::Status FindFiles();

  const std::string dir_;
  const bool is_claimed_;
  const std::unique_ptr<AppendFile> lines_, events_;
  const std::function<absl::Status()> may_write_;  // Unset: always.
  std::string remark_;
  double last_flush_ = 0;  // As "time" of points.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RUN_FOLDER_RUN_METRICS_H_
