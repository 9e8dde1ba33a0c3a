// A daemon's own directory: a lock that keeps a second daemon out, the files of the running rank, and what is needed to
// clear away what a killed daemon has left.
//   lock         held while the daemon runs
//   rank.json    {"pid": ..., "start_time": ...} of the running rank process
//   run/         start file and program of the running rank
//   rank.log(.1) the ranks' output, and the daemon's lines about them
#ifndef TACC_WORKER_DAEMON_HOST_STATE_DIRECTORY_H_
#define TACC_WORKER_DAEMON_HOST_STATE_DIRECTORY_H_

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

// Not thread-safe. Destroying it gives the lock back.
class StateDirectory {
 public:
  // Makes the directory when it is missing, takes the lock and clears leftovers: a rank process that still runs is
  // given `patience_seconds` to see that its stdin has closed, then killed; its files and status blocks are removed.
  // Errors: AlreadyExists when another daemon holds the lock; FailedPrecondition when the old rank cannot be killed;
  // others when the directory cannot be made or written.
  static absl::StatusOr<std::unique_ptr<StateDirectory>> Open(const std::string& path, double patience_seconds);
  ~StateDirectory();
  StateDirectory(const StateDirectory&) = delete;
  StateDirectory& operator=(const StateDirectory&) = delete;

  const std::string& path() const { return path_; }
  std::string StartPath() const { return path_ + "/run/start.json"; }
  std::string ProgramPath() const { return path_ + "/run/stage.program"; }
  std::string LogPath() const { return path_ + "/rank.log"; }
  // The prefix of the names of all status blocks of this directory's daemon: "/tacc-<hash>-".
  const std::string& status_block_prefix() const { return status_block_prefix_; }

  // Writes the files of a rank that is about to start.
  absl::Status WriteStartFiles(const std::string& start, const std::string& program);
  // Records the rank's process, for a daemon that finds it after this one was killed.
  absl::Status RecordRank(pid_t pid);
  // Removes the rank's files, once it is reaped.
  void ClearRank();

 private:
  StateDirectory(std::string path, int lock_fd, std::string status_block_prefix)
      : path_(std::move(path)), lock_fd_(lock_fd), status_block_prefix_(std::move(status_block_prefix)) {}
  std::string path_;
  int lock_fd_;
  std::string status_block_prefix_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_STATE_DIRECTORY_H_
