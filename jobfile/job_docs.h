// docs/job.md and docs/json.md, from the schema.
#ifndef TACC_JOBFILE_JOB_DOCS_H_
#define TACC_JOBFILE_JOB_DOCS_H_

#include <string>

#include "absl/status/statusor.h"

namespace tacc::jobfile {

// The page about the job file as Markdown: for each section of tacc/v1/job.proto under `proto_root` its fields with
// type, default, bounds, unit and comment. InvalidArgument when the schema does not parse or a field has no comment.
absl::StatusOr<std::string> JobDocs(const std::string& proto_root);

// docs/json.md: the fields of what taccctl prints with `-o json`, from tacc/v1/coordinator.proto. InvalidArgument when
// the schema does not parse.
absl::StatusOr<std::string> JsonDocs(const std::string& proto_root);

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_JOB_DOCS_H_
