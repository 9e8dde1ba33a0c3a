// A folder that appears complete or not at all, whoever else writes one of the same name.
#ifndef TACC_WORKER_CHECKPOINT_FILES_FOLDER_PUBLICATION_H_
#define TACC_WORKER_CHECKPOINT_FILES_FOLDER_PUBLICATION_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

// Writes beside `path`, in a folder of this object's own, .tmp-export-NAME.XXXXXX, and puts it into place in one step.
// Several processes, also of several hosts, may do so at once: the one that publishes last wins, and what is there is
// at any time all of one of them. A lock file beside the folder (flock) says that its process lives.
class FolderPublication {
 public:
  // Removes what processes that have ended have left of theirs, and makes the folder, with the missing parents of
  // `path` (absolute, without a trailing slash).
  static absl::StatusOr<std::unique_ptr<FolderPublication>> Begin(const std::string& path);
  // Removes the folder unless it was published.
  ~FolderPublication();
  FolderPublication(const FolderPublication&) = delete;
  FolderPublication& operator=(const FolderPublication&) = delete;

  // Where to write.
  const std::string& directory() const { return directory_; }

  // Forces the folder's entries to the disk, and puts it in the place of `path`; the folder that was there is removed.
  // OK: `path` was seen to be this folder. Aborted: another process has published its own in the same moment.
  absl::Status Publish();

 private:
  FolderPublication(std::string path, std::string directory, int lock_fd)
      : path_(std::move(path)), directory_(std::move(directory)), lock_fd_(lock_fd) {}
  std::string path_;
  std::string directory_;
  int lock_fd_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_FILES_FOLDER_PUBLICATION_H_
