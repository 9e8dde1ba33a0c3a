// The ranks' output, and the daemon's lines about them, in the run's folder: DIR/logs/attempt-N/rank-R.log.
#ifndef TACC_WORKER_DAEMON_HOST_RUN_LOG_H_
#define TACC_WORKER_DAEMON_HOST_RUN_LOG_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "confinement/confine.h"

namespace tacc::worker {

// Not thread-safe. Writes on a thread of its own, because the folder may be slow, away, full or read-only: no method
// waits for it. A file is open only while it is written, so it may be moved or removed at any time.
class RunLog {
 public:
  // The rank whose lines are written, and the folder they go to.
  struct Place {
    std::string checkpoint_dir;  // Empty: nowhere.
    bool is_claimed = false;     // As `checkpoint.claimed` of the start file: its job.json tells it from a lost mount.
    int32_t attempt = 0;
    int32_t rank = 0;
    std::string job;  // Not part of the path.
    std::string Folder() const;
    std::string Path() const;
  };
  struct Limits {
    // A file of this size becomes FILE.1, in place of the one before. Each may be larger by one write.
    int64_t file_bytes = 3 << 20;
    // The most bytes of lines that wait to be written, and that are written at once. The newest are kept; a line in the
    // file says how many are missing.
    int64_t waiting_bytes = 1 << 20;
    double write_seconds = 1;  // From one write to the next.
    double retry_seconds = 5;  // After one that failed.
    double slow_seconds = 30;  // A write that takes longer is trouble.
    double end_seconds = 2;    // How long the last lines may take when the object is destroyed.
    // Rank 0's log removes the folders of attempts this far back and farther.
    int32_t num_attempts = 20;
  };

  // Appends to the place's file, and takes from `text` what was written. Called on the thread of the log's own, one
  // call at a time; may take as long as a file system does, and longer than the object lives.
  using Append = std::function<absl::Status(const Place& place, std::string* text)>;

  // Folders are written to as `confinement` says.
  explicit RunLog(const Limits& limits, const Confinement& confinement = {});
  // With `append` in place of files.
  RunLog(const Limits& limits, Append append);
  // Gives the last lines limits.end_seconds; a thread that a file system holds longer is left to itself.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Writes lines from now on to `place`. Lines of the place before that could not be written are tried once more.
  void Begin(Place place);

  // Adds a line, with the time `now` (seconds since the epoch) before it. Does nothing before the first Begin.
  void Line(const std::string& line, double now);

  // Returns a place whose lines are not written, and why, once for each place; an OK status when there is none. The
  // place may be the one before, whose last lines wait when the next rank begins.
  struct Trouble {
    Place place;
    absl::Status status;
  };
  Trouble TakeTrouble();

 private:
  struct Shared;
  static void Loop(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;
  std::thread thread_;  // Last: it uses the other.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_RUN_LOG_H_
