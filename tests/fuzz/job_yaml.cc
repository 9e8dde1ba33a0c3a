// A job file. What the client takes, the coordinator takes.
#include "jobfile/job_file.h"
#include "proto/tacc/v1/validate_job.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const tacc::jobfile::JobFile file = tacc::jobfile::ReadJob(std::string(tacc::fuzz::TextOf(data, size)), "/jobs");
  if (!file.problems.empty()) return 0;
  tacc::fuzz::Require(tacc::ValidateJobSpec(file.spec).empty(), "a job without problems is valid");
  tacc::v1::JobSpec sent;
  tacc::fuzz::Require(sent.ParseFromString(file.spec.SerializeAsString()), "a job can be sent");
  return 0;
}
