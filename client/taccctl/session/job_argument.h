// The job file that a command takes, and what is given beside it.
#ifndef TACC_CLIENT_TACCCTL_SESSION_JOB_ARGUMENT_H_
#define TACC_CLIENT_TACCCTL_SESSION_JOB_ARGUMENT_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "client/taccctl/session/context.h"
#include "jobfile/job_file.h"
#include "tacc/v1/job.pb.h"

namespace tacc::client {

struct JobArgument {
  // "-": stdin.
  std::string file;
  // Of each `--set`: FIELD=VALUE.
  std::vector<std::string> sets;
};

// The option --set of a command that takes a job file.
void AddSetOption(CLI::App* command, JobArgument* argument);

// The job file as the command's argument, and --set.
void AddJobArgument(CLI::App* command, JobArgument* argument);

// The job. InvalidArgument with all that is wrong with it (also when there is no such file).
absl::StatusOr<v1::JobSpec> LoadJob(const JobArgument& argument, Context& context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_JOB_ARGUMENT_H_
