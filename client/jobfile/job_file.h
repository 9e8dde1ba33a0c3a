// A job file (YAML) as a JobSpec. The schema of job.proto is the only list of fields: names and nesting are the same.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "tacc/v1/job.pb.h"

namespace tacc::client {

// The job in `text`, with relative paths resolved against `directory` (absolute) and checkpoint.dir set (runs/NAME when
// not given); other unset fields stay unset. InvalidArgument otherwise: one line for each thing that is wrong,
// `FILE:LINE:COLUMN: what, and what to do`, in the order of the file, all at once (at most 100). Any bytes are safe.
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file,
                                         const std::string& directory);

// The job in the file at `path`; relative paths in it are taken from its folder. NotFound or InvalidArgument when it
// cannot be read.
absl::StatusOr<v1::JobSpec> LoadJobFile(const std::string& path);

}  // namespace tacc::client
