// The folder of one `taccctl submit --local`: states and logs of its coordinator and workers.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_SCRATCH_FOLDER_H_
#define TACC_CLIENT_TACCCTL_LOCAL_SCRATCH_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace tacc::client {

// BASE/tacc-local-XXXXXX, removed again with the object, unless it has logs to keep. Its file `lock` is there only once
// it is locked (flock): one that nobody holds is of a process that was killed. Where the file system knows no locks
// there is no such file.
class ScratchFolder {
 public:
  // First removes those in `base` that killed processes have left: this user's alone, with a lock that nobody holds,
  // nor the one of a coordinator or worker in it. A folder without a lock stays.
  static absl::StatusOr<std::unique_ptr<ScratchFolder>> Make(const std::string& base);
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }

  // Sees to it that the logs in it can still be read when the object has gone, and returns the folder where: `dir`,
  // which is made, with copies in place of older ones there; or, where they cannot be copied, this folder, which stays
  // then for good, without a lock.
  std::string KeepLogs(const std::string& dir);
  // Whether KeepLogs was called.
  bool has_kept_logs() const { return has_kept_logs_; }

 private:
  ScratchFolder(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  const std::string path_;
  const int lock_fd_;
  bool has_kept_logs_ = false;
  bool stays_ = false;
};

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_SCRATCH_FOLDER_H_
