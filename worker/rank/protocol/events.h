#ifndef TACC_WORKER_RANK_PROTOCOL_EVENTS_H_
#define TACC_WORKER_RANK_PROTOCOL_EVENTS_H_

#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "graph/ir/capture.h"
#include "nlohmann/json.hpp"
#include "protocol/rank_events.h"

namespace tacc::worker {

// Writes the events of docs/contracts.md to a file descriptor, one JSON object a line, each by one write. Thread-safe.
// A reader that has gone is ignored: end-of-file on stdin ends the rank.
class EventWriter {
 public:
  explicit EventWriter(int fd) : fd_(fd) {}

  // Adds "event" and, where it is not there yet, "time", and writes the line.
  void Write(const std::string& event, nlohmann::json fields);
  template <protocol::DeclaredEvent Event>
  void Write(const Event& event) {
    Write(Event::kName, protocol::EventJson(event));
  }
  void Warning(const std::string& code, const std::string& message);
  // The first warning with this code; later ones with it are dropped.
  void WarningOnce(const std::string& code, const std::string& message);
  void Failed(const std::string& code, const std::string& message);
  void Log(const std::string& message);

 private:
  const int fd_;
  absl::Mutex mutex_;
  std::set<std::string> warned_once_;  // Codes.
};

// `capture` of the event `ready`.
std::vector<nlohmann::json> CaptureJson(const std::vector<graph::CapturePart>& parts);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_EVENTS_H_
