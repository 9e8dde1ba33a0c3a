#ifndef TACC_WORKER_RUN_FOLDER_RUN_REPORT_H_
#define TACC_WORKER_RUN_FOLDER_RUN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace tacc::worker {

// What is known of a run at its end, or at the end of an attempt that failed, beside its metrics.
struct RunReport {
  std::string dir;                  // Its folder.
  nlohmann::json run;               // `run` of its start file (docs/contracts.md); an empty object where there is none.
  std::string outcome;              // "finished", "stopped", "failed", "was cancelled".
  std::string failure;              // Why it failed; else empty.
  bool may_go_on = false;           // After a failure: another attempt may follow.
  int64_t attempt = 0;              // Which start of the job this is.
  int64_t step = 0;                 // Updates done,
  int64_t max_steps = 0;            // and wanted.
  std::string export_dir;           // Of the exported model; empty: none.
  std::string checkpoint;           // Path of the last one.
  int64_t peak_memory_bytes = 0;    // Of rank 0: of its GPU, or resident; 0: not known.
  std::vector<int32_t> prompt_ids;  // Tokens that a sample of the model begins with; may be empty.
};

// DIR/report.html.
std::string ReportPath(const std::string& dir);

// Writes the page: what became of the run, its curves, predicted beside measured, restarts, where its files are, and
// how to use the model. Takes the curves from DIR/metrics.jsonl. The section of a sample is between two comments, for
// `python -m tacc sample --report` to fill in. Errors: as ErrnoStatus, the file named.
absl::Status WriteReport(const RunReport& report);

// A page that an earlier end has left says from now on that `attempt` trains, after `step` updates. Nothing where there
// is none, or one of a version whose pages cannot say so. Errors: as ErrnoStatus.
absl::Status SayItGoesOn(const std::string& dir, int64_t attempt, int64_t step);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RUN_FOLDER_RUN_REPORT_H_
