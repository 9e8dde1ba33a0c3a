// Who uses a folder now.
#ifndef TACC_MACHINE_FOLDER_LOCK_H_
#define TACC_MACHINE_FOLDER_LOCK_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace tacc {

// A checkpoint.dir in use: an advisory lock on the file .lock in it, which says by whom. It ends with the object, or
// with the process, however that ends; the file stays. A folder that takes no file, or whose file system knows no
// locks, is not locked, and nothing is said of it.
class FolderLock {
 public:
  enum class Kind {
    kShared,  // Beside others of this kind: ranks of a service, which sees to it that its jobs do not meet.
    kAlone,
  };

  // `user`: "job tiny"; pid and host are added. FailedPrecondition: the lock is another's; names the folder and who.
  static absl::StatusOr<std::unique_ptr<FolderLock>> Take(const std::string& dir, Kind kind, const std::string& user);

  // FailedPrecondition, as of Take: another holds the lock kAlone, and did not say that `coordinator` is its own.
  // Takes nothing, and makes no file.
  static absl::Status Check(const std::string& dir, const std::string& coordinator);
  // Whether the one who holds it kAlone said so.
  static bool IsFor(const std::string& dir, const std::string& coordinator);

  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  // Says at which address the coordinator is whose workers may use the folder.
  void SetCoordinator(const std::string& address);

 private:
  FolderLock(int fd, std::string user) : fd_(fd), user_(std::move(user)) {}
  const int fd_;  // -1: nothing is locked.
  const std::string user_;
};

}  // namespace tacc

#endif  // TACC_MACHINE_FOLDER_LOCK_H_
