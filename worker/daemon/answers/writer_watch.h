// Judges by looks at a folder's writer.json whether its writer lives.
#ifndef TACC_WORKER_DAEMON_ANSWERS_WRITER_WATCH_H_
#define TACC_WORKER_DAEMON_ANSWERS_WRITER_WATCH_H_

#include <map>
#include <string>

#include "worker/checkpoint/folder_writer.h"

namespace tacc::worker {

// A writer that renews its file lives; one whose file has stayed the same for kDeadSeconds of looks is dead. Clocks of
// two hosts are never compared. At most kMostSeconds count between two looks: the file system may have been away, for
// the writer too. Each new asker begins anew: the writer may have died since another asked. Not thread-safe. `now` is
// in seconds for which this process ran.
class WriterWatch {
 public:
  static constexpr double kDeadSeconds = 30;
  static constexpr double kMostSeconds = 15;

  enum class Life { kUnknown, kLives, kDead };
  Life Look(const std::string& dir, const std::string& asker, const FolderWriter& writer, double now);
  // Drops what was seen of `dir`: nobody writes there, or nothing could be seen.
  void Forget(const std::string& dir) { seen_.erase(dir); }

 private:
  struct Seen {
    std::string asker;
    std::string service;
    double renewed = 0;
    double last_look = 0;
    double still_seconds = 0;
  };
  std::map<std::string, Seen> seen_;  // By folder.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_ANSWERS_WRITER_WATCH_H_
