// Checks a JobSpec against the rules of its schema: a coordinator trusts no client.
#ifndef COORDINATOR_CORE_CHECK_SPEC_H_
#define COORDINATOR_CORE_CHECK_SPEC_H_

#include "absl/status/status.h"
#include "tacc/v1/job.pb.h"

namespace tacc::coordinator {

// InvalidArgument lists everything that is wrong, one line each: required fields, ranges, enum values, relative paths (a path's meaning must
// not hang on the coordinator's own folder), a name that is no file name, sizes that contradict each other.
absl::Status CheckSpec(const v1::JobSpec& spec);

}  // namespace tacc::coordinator

#endif  // COORDINATOR_CORE_CHECK_SPEC_H_
