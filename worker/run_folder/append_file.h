#ifndef TACC_WORKER_RUN_FOLDER_APPEND_FILE_H_
#define TACC_WORKER_RUN_FOLDER_APPEND_FILE_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tacc::worker {

// A file that grows at its end, for records that come one by one. Not thread-safe. What was not flushed is lost with
// the object.
class AppendFile {
 public:
  // Opens or creates it. Errors: as ErrnoStatus.
  static absl::StatusOr<std::unique_ptr<AppendFile>> Open(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  // Keeps the bytes in memory until Flush.
  void Append(absl::string_view bytes) { waiting_.append(bytes.data(), bytes.size()); }
  size_t num_waiting_bytes() const { return waiting_.size(); }

  // Whether the file is still at its path: not removed, and not replaced by another.
  bool IsInPlace() const;

  // Goes on with the file that is at the path now, or a new one; one that is empty begins with `head`. What waits goes
  // there. After an error it goes on as before.
  absl::Status Reopen(absl::string_view head);

  // Writes what waits. After an error (a full disk) what was not written waits on, and a later Flush goes on behind the
  // last byte that was.
  absl::Status Flush();

  // Flush, and forces the content to the disk.
  absl::Status Sync();

 private:
  AppendFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}

  const std::string path_;
  int fd_;
  std::string waiting_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RUN_FOLDER_APPEND_FILE_H_
