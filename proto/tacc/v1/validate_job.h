// Checks of a JobSpec that need neither model nor data nor machine. Run by the client on a job file and again by the
// coordinator on what it receives.
#ifndef TACC_PROTO_TACC_V1_VALIDATE_JOB_H_
#define TACC_PROTO_TACC_V1_VALIDATE_JOB_H_

#include <string>
#include <vector>

#include "tacc/v1/job.pb.h"

namespace tacc {

// One thing that is wrong with a job.
struct JobDiagnostic {
  // Path of the field as in the job file: "train.max_steps".
  std::string field;
  // What is wrong and what to do, beginning with the field's path.
  std::string message;
  // Other fields that the check looked at.
  std::vector<std::string> related;
};

// All that is wrong with `spec`, in the order of the schema, empty when nothing is: required fields, bounds of the
// schema, finite numbers, absolute paths, and the checks across fields (batch size against layout, layout against
// workers, model.path against model.graph, ...). Any bytes are safe.
std::vector<JobDiagnostic> ValidateJobSpec(const v1::JobSpec& spec);

// `spec` with each unset field that has a default in the schema set to it. What is still unset then is for the planner
// to decide. Idempotent.
v1::JobSpec WithDefaults(const v1::JobSpec& spec);

// Ranks that the job asks for: resources.workers, else the product of the sizes under `dist` that are given; 0 when
// none is given.
int RequestedWorld(const v1::JobSpec& spec);

// `value` as the job file writes it: an enum value in lower case without its prefix ("LR_SCHEDULER_TYPE_COSINE" ->
// "cosine").
std::string EnumValueInJobFile(const google::protobuf::EnumValueDescriptor& value);

}  // namespace tacc

#endif  // TACC_PROTO_TACC_V1_VALIDATE_JOB_H_
