// A job file (YAML) as a JobSpec. The schema of job.proto is the only list of fields: names and nesting are the same.
#ifndef TACC_JOBFILE_JOB_FILE_H_
#define TACC_JOBFILE_JOB_FILE_H_

#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "jobfile/yaml_tree.h"
#include "tacc/v1/job.pb.h"

namespace tacc::jobfile {

struct JobFileOptions {
  // Fields over what the file says, as `train.max_steps=200`: the value is YAML, a relative path in it is taken from
  // the current folder, and `null` takes the field out. Messages about them begin with `--set FIELD=VALUE: `.
  std::vector<std::string> sets;
};

// A job file as it was read.
struct JobFile {
  v1::JobSpec spec;
  // All that is wrong with it, in the order of the file; empty: nothing, and `spec` is the job.
  std::vector<Diagnostic> problems;
};

// The job in `text`, with relative paths resolved against `directory` (absolute) and checkpoint.dir set (runs/NAME when
// not given); other unset fields stay unset. Any bytes are safe.
JobFile ReadJob(const std::string& text, const std::string& directory, const JobFileOptions& options = {});

// The same job. InvalidArgument otherwise: one line for each thing that is wrong, `FILE:LINE:COLUMN: what, and what to
// do`, all at once (at most 100).
absl::StatusOr<v1::JobSpec> ParseJobFile(const std::string& text, const std::string& file, const std::string& directory,
                                         const JobFileOptions& options = {});

// The job in the file at `path`; relative paths in it are taken from its folder. NotFound or InvalidArgument when it
// cannot be read.
absl::StatusOr<v1::JobSpec> LoadJobFile(const std::string& path, const JobFileOptions& options = {});

// The job in a stream, which messages call `file`; relative paths in it are taken from `directory`.
absl::StatusOr<v1::JobSpec> ReadJobFile(std::istream& stream, const std::string& file, const std::string& directory,
                                        const JobFileOptions& options = {});

}  // namespace tacc::jobfile

#endif  // TACC_JOBFILE_JOB_FILE_H_
