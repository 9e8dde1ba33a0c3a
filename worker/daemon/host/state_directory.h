// A daemon's own directory: a lock that keeps a second daemon out, the files of the running rank, and what is needed to
// clear away what a killed daemon has left. It is this user's alone (0700, files 0600), whatever the umask.
//   lock         held while the daemon runs
//   rank.json    {"pid": ..., "start_time": ...} of the running rank process
//   run/         start file and program of the running rank, which are that user's where ranks are another's
//   rank.log(.1) the ranks' output, and the daemon's lines about them
#ifndef TACC_WORKER_DAEMON_HOST_STATE_DIRECTORY_H_
#define TACC_WORKER_DAEMON_HOST_STATE_DIRECTORY_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "confinement/user.h"
#include "nlohmann/json_fwd.hpp"

namespace tacc::worker {

// Not thread-safe. Destroying it gives the lock back.
class StateDirectory {
 public:
  // Makes the directory when it is missing, takes the lock and clears leftovers: a rank process that still runs is
  // given `patience_seconds` to see that its stdin has closed, then killed; its files and status blocks are removed.
  // Errors: AlreadyExists when another daemon holds the lock; FailedPrecondition when the old rank cannot be killed;
  // others when the directory cannot be made or written.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& path, double patience_seconds);
  // Of a daemon that this one replaces in its process, by what HandOver of its object said: lock, files and status
  // blocks are this object's now. InvalidArgument: it says something else.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> TakeOver(const nlohmann::json& handed);
  // The lock's descriptor, which is to stay open, and names. This object lets go of them.
  nlohmann::json HandOver();
  ~StateDirectory();
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string StartPath() const { return path_ + "/run/start.json"; }
  std::string ProgramPath() const { return path_ + "/run/stage.program"; }
  // Holds both. Nobody else can change what is in it: the daemon may be root's.
  std::string RunPath() const { return path_ + "/run"; }
  std::string LogPath() const { return path_ + "/rank.log"; }
  // The prefix of the names of this object's status blocks: "/tacc-<hash>-<random>-". In /dev/shm others could take a
  // name that they guess before this daemon does.
  const std::string& status_block_prefix() const { return status_block_prefix_; }
  // A folder, not made here, in memory of this machine, for the sockets and files of a rank that others of this machine
  // open. Its path is short enough for a socket's.
  std::string LocalFolder() const { return absl::StrCat("/dev/shm", status_block_prefix_, "local"); }

  // Of a folder for its ranks' cgroups: "tacc-<hash>".
  const std::string& CgroupName() const { return cgroup_name_; }

  // Ranks are that user's from now on, who may enter the folders and read a rank's files. PermissionDenied or
  // InvalidArgument: that cannot be.
  absl::Status LetIn(const User& user);

  // Writes the files of a rank that is about to start.
  absl::Status WriteStartFiles(const std::string& start, const std::string& program);
  // Records the rank's process, for a daemon that finds it after this one was killed.
  absl::Status RecordRank(pid_t pid);
  // Removes the rank's files, those in LocalFolder() too, once it is reaped.
  void ClearRank();

 private:
  absl::Status MakeRunFolder() const;
  StateDirectory(std::string path, int lock_fd, std::string cgroup_name, std::string status_block_prefix)
      : path_(std::move(path)),
        lock_fd_(lock_fd),
        cgroup_name_(std::move(cgroup_name)),
        status_block_prefix_(std::move(status_block_prefix)) {}
  std::string path_;
  int lock_fd_;
  std::string cgroup_name_;
  std::string status_block_prefix_;
  std::optional<User> user_;  // Of ranks, where it is another one.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_STATE_DIRECTORY_H_
