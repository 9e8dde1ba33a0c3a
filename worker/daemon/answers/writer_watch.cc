#include "worker/daemon/answers/writer_watch.h"

#include <algorithm>

namespace tacc::worker {

WriterWatch::Life WriterWatch::Look(const std::string& dir, const std::string& asker, const FolderWriter& writer,
                                    double now) {
  const Seen first = {asker, writer.service, writer.renewed, now, 0};
  Seen& seen = seen_.emplace(dir, first).first->second;
  if (seen.asker != asker) seen = first;
  if (seen.service != writer.service || seen.renewed != writer.renewed) {
    seen = first;
    return Life::kLives;
  }
  seen.still_seconds += std::min(now - seen.last_look, kMostSeconds);
  seen.last_look = now;
  return seen.still_seconds >= kDeadSeconds ? Life::kDead : Life::kUnknown;
}

}  // namespace tacc::worker
