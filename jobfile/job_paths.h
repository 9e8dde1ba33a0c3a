// Whether what a job reads is there.
#ifndef TACC_JOBFILE_JOB_PATHS_H_
#define TACC_JOBFILE_JOB_PATHS_H_

#include "absl/status/status.h"
#include "tacc/v1/job.pb.h"

namespace tacc::jobfile {

// Whether what the job reads (model, data, a checkpoint to go on from) is there, for a job that runs on this machine.
// InvalidArgument otherwise, a line for each field.
absl::Status CheckPaths(const v1::JobSpec& spec);

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_JOB_PATHS_H_
