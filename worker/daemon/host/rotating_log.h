// A log file of bounded size: FILE and, once it was full, FILE.1 with the lines before.
#ifndef TACC_WORKER_DAEMON_HOST_ROTATING_LOG_H_
#define TACC_WORKER_DAEMON_HOST_ROTATING_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tacc::worker {

// Not thread-safe.
class RotatingLog {
 public:
  // Opens `path` for appending. Each of the two files holds at most `max_bytes` and one call's text. Errors: as
  // ErrnoStatus.
  static absl::StatusOr<std::unique_ptr<RotatingLog>> Open(const std::string& path, int64_t max_bytes);
  ~RotatingLog();
  RotatingLog(const RotatingLog&) = delete;
  RotatingLog& operator=(const RotatingLog&) = delete;

  // Appends `text` and removes from it what was written, all of it on success. Errors: as ErrnoStatus.
  absl::Status Append(std::string* text);

  // Appends a line. A full disk loses the line and nothing else.
  void Line(const std::string& line);

 private:
  RotatingLog(std::string path, int64_t max_bytes, int fd, int64_t num_bytes)
      : path_(std::move(path)), max_bytes_(max_bytes), fd_(fd), num_bytes_(num_bytes) {}
  std::string path_;
  int64_t max_bytes_;
  int fd_;
  int64_t num_bytes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_ROTATING_LOG_H_
