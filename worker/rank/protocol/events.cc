#include "worker/rank/protocol/events.h"

#include <errno.h>
#include <unistd.h>

#include "machine/clock.h"

namespace tacc::worker {

void EventWriter::Write(const std::string& event, nlohmann::json fields) {
  fields["event"] = event;
  fields.emplace("time", WallSeconds());
  // Texts from file names may not be UTF-8; a line must be.
  const std::string line = fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  absl::MutexLock lock(&mutex_);
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t n = write(fd_, line.data() + done, line.size() - done);
    if (n < 0 && errno != EINTR) return;
    if (n > 0) done += n;
  }
}

void EventWriter::Warning(const std::string& code, const std::string& message) {
  Write(protocol::WarningEvent{.code = code, .message = message});
}

void EventWriter::WarningOnce(const std::string& code, const std::string& message) {
  {
    absl::MutexLock lock(&mutex_);
    if (!warned_once_.insert(code).second) return;
  }
  Warning(code, message);
}

void EventWriter::Failed(const std::string& code, const std::string& message) {
  Write(protocol::FailedEvent{.code = code, .message = message});
}

void EventWriter::Log(const std::string& message) { Write(protocol::LogEvent{.message = message}); }

std::vector<nlohmann::json> CaptureJson(const std::vector<graph::CapturePart>& parts) {
  std::vector<nlohmann::json> list;
  for (const graph::CapturePart& part : parts) {
    list.push_back(nlohmann::json{{"graph", part.graph}, {"nodes", part.num_nodes}, {"first_node", part.first_node}});
    if (!part.not_captured.empty()) list.back()["not_captured"] = part.not_captured;
  }
  return list;
}

}  // namespace tacc::worker
