// The ranks' log lines on disk: jobs_dir/ID/ranks.log and, when that is full, ranks.log.1 before it. Bounded; the
// oldest lines go.
#ifndef TACC_COORDINATOR_SERVICE_LOG_FILES_H_
#define TACC_COORDINATOR_SERVICE_LOG_FILES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tacc/v1/coordinator.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

// Not thread-safe.
class LogFiles {
 public:
  // A file is closed and moved aside at `max_file_bytes`.
  LogFiles(std::string jobs_dir, int64_t max_file_bytes)
      : jobs_dir_(std::move(jobs_dir)), max_file_bytes_(max_file_bytes) {}

  absl::Status Append(const v1::RankId& id, const v1::RankLog& log);

  struct Page {
    std::vector<v1::LogLine> lines;
    int64_t next = 0;  // Position to go on from; equal to the one asked for at the end of the log.
  };
  // Lines from `position` (0: the oldest kept) on, about 256 KiB of them. A position is one of the whole log, of which
  // the files keep the end, also for a later process.
  absl::StatusOr<Page> Read(const std::string& job, int64_t position);

  // Removes the job's lines.
  void Forget(const std::string& job);

 private:
  // A file that does not begin the log says in its first line at which position it begins.
  struct Files {
    int64_t old_bytes = 0;      // Of ranks.log.1.
    int64_t current_bytes = 0;  // Of ranks.log.
    int64_t begin = 0;          // Position of the first byte of ranks.log.1.
  };
  Files& Open(const std::string& job);
  std::string Path(const std::string& job) const;

  const std::string jobs_dir_;
  const int64_t max_file_bytes_;
  std::map<std::string, Files> files_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_LOG_FILES_H_
