// What ranks write and what is said of them, kept in the run's folder: DIR/logs/attempt-N/rank-R.log.
#ifndef TACC_WORKER_DAEMON_HOST_RUN_LOG_H_
#define TACC_WORKER_DAEMON_HOST_RUN_LOG_H_

#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"

namespace tacc::worker {

// Not thread-safe. Writes on a thread of its own, because the folder may be slow, away, full or read-only: no method
// waits for it. A file is open only while it is written, so it may be moved or removed at any time.
class RunLog {
 public:
  // Whose lines are written, and where.
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
    // A file that has so many bytes becomes FILE.1, in place of the one before. Each has one write more at most.
    int64_t file_bytes = 3 << 20;
    // Of lines that wait to be written the newest so many bytes are kept; a line in the file says how many are missing.
    // It is also the most that is written at once.
    int64_t waiting_bytes = 1 << 20;
    double write_seconds = 1;  // From one write to the next.
    double retry_seconds = 5;  // After one that failed.
    double slow_seconds = 30;  // A write that takes longer is trouble.
    double end_seconds = 2;    // How long the last lines may take when the object is destroyed.
    // Rank 0's log removes the folders of attempts this far back and farther.
    int32_t num_attempts = 20;
  };

  explicit RunLog(const Limits& limits);
  // Gives the last lines limits.end_seconds; a thread that a file system holds longer is left to itself.
  ~RunLog();
  RunLog(const RunLog&) = delete;
  RunLog& operator=(const RunLog&) = delete;

  // Lines from now on are of `place`. What could not be written of the one before is tried once more.
  void Begin(Place place);

  // Adds a line, with the time `now` (seconds since the epoch) before it. Nothing before the first Begin.
  void Line(const std::string& line, double now);

  // Whose lines are not written and why, once a place; a status that is OK: nobody's. It may be the place before this
  // one: its last lines wait when the next rank begins.
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
