// Whether who writes to a folder lives, by looks at its writer.json.
#ifndef TACC_WORKER_DAEMON_ANSWERS_WRITER_WATCH_H_
#define TACC_WORKER_DAEMON_ANSWERS_WRITER_WATCH_H_

#include <map>
#include <string>

#include "worker/checkpoint/folder_writer.h"

namespace tacc::worker {

// One that renews its file lives; one whose file has stayed the same for kDeadSeconds of looking at it does not. Clocks
// of two hosts are never compared, and of the time between two looks at most kMostSeconds count: the file system may
// have been away, to the writer too. Who asks anew begins anew: one may have died since another asked. Not thread-safe.
// `now`: seconds in which this process ran.
class WriterWatch {
 public:
  static constexpr double kDeadSeconds = 30;
  static constexpr double kMostSeconds = 15;

  enum class Life { kUnknown, kLives, kDead };
  Life Look(const std::string& dir, const std::string& asker, const FolderWriter& writer, double now);
  // Nobody was seen there, or nothing could be seen.
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
