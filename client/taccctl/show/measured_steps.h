// A table of measured steps (CSV) that `taccctl plan --calibrate` takes.
#ifndef TACC_CLIENT_TACCCTL_SHOW_MEASURED_STEPS_H_
#define TACC_CLIENT_TACCCTL_SHOW_MEASURED_STEPS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/session/job_argument.h"

namespace tacc::client {

// A row: a run's job, with its layout over what the job file says, and how long its steps took.
struct MeasuredStep {
  std::string place;  // "measured.csv:3"
  JobArgument job;
  int gpus = 0;
  double seconds = 0;
};

// The first line names the columns, which are called as in `plan -o json`: step_seconds and world, which every row has;
// the sizes of the axes pp, dp, fsdp, ep, cp and tp, which are 1 where a row leaves them out and multiply to world;
// per_device_train_batch_size, global_batch_size, schedule, num_chunks, zero_stage, reduce_each_micro_batch and gc,
// which are the job's where a row leaves them out; `job`, a job file for this row in place of `job`, its path from the
// table's folder. Cells have no commas; what is behind a # and empty lines are left out. Errors: InvalidArgument, a
// line for each thing that is wrong, `FILE:LINE: COLUMN ...`; NotFound for a missing file.
absl::StatusOr<std::vector<MeasuredStep>> ReadMeasuredSteps(const std::string& path, const JobArgument& job);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SHOW_MEASURED_STEPS_H_
