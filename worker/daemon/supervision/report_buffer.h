// The reports of rank processes that the coordinator has not acknowledged, in order, numbered, within a bound.
#ifndef TACC_WORKER_DAEMON_SUPERVISION_REPORT_BUFFER_H_
#define TACC_WORKER_DAEMON_SUPERVISION_REPORT_BUFFER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "nlohmann/json_fwd.hpp"
#include "worker/daemon/supervision/rank_key.h"

namespace tacc::worker {

struct ExitReport {
  absl::optional<int> exit_code;  // Unset: ended by a signal, or never started.
  int signal = 0;
  std::vector<std::string> last_log_lines;
  std::string start_error;
  bool killed = false;
};

enum class ReportKind {
  kEvent,       // One line of JSON.
  kStepMetric,  // The same, of a kind that may be thinned out when far too many are held.
  kLog,         // Lines of stderr.
  kExit,        // The last report of a rank.
};

struct Report {
  RankKey key;
  uint64_t sequence = 0;
  double time = 0;  // Seconds since the epoch.
  ReportKind kind = ReportKind::kEvent;
  std::string event;
  std::vector<std::string> log_lines;
  ExitReport exit;
};

struct HeldRank {
  RankKey key;
  bool has_exited = false;  // Its exit report has been added.
};

// Not thread-safe.
class ReportBuffer {
 public:
  struct Limits {
    // A step event is about 0.5 KB with overhead: this holds half a million steps, over a day at five steps a second.
    size_t event_bytes = 256 << 20;
    size_t log_bytes = 16 << 20;
  };
  explicit ReportBuffer(const Limits& limits) : limits_(limits) {}

  // Numbers and keeps a report. Over a limit the oldest logs, or the oldest step metrics, are dropped; other events and
  // exits never are. Reports after a rank's exit report are ignored.
  void Add(Report report);

  // Drops the reports of `key` up to `sequence`, which the coordinator has stored. A rank whose exit is acknowledged is
  // forgotten, except its last number.
  void Acknowledge(const RankKey& key, uint64_t sequence);

  // Makes Next return everything kept again, for a new connection.
  void Rewind();

  // Returns the next report to send on this connection, oldest rank first, or null. It stays valid until the next call
  // of any method.
  const Report* Next();

  // Ranks with unacknowledged reports, or whose exit has not been added, oldest first.
  std::vector<HeldRank> Held() const;
  bool IsHeld(const RankKey& key) const;

  // True when everything added was acknowledged.
  bool IsEmpty() const;
  size_t num_bytes() const { return event_bytes_ + log_bytes_; }
  uint64_t num_dropped() const { return num_dropped_; }

  // For the buffer of a daemon that takes this one's place. TakeOver is of an empty one; nlohmann's exceptions: it was
  // not made by HandOver.
  nlohmann::json HandOver() const;
  void TakeOver(const nlohmann::json& handed);

 private:
  struct Stream {
    std::map<uint64_t, Report> reports;
    std::set<uint64_t> logs;   // Sequences of reports of kind kLog.
    std::set<uint64_t> steps;  // Of kind kStepMetric.
    uint64_t last_sequence = 0;
    uint64_t last_sent = 0;  // On this connection.
    bool has_exited = false;
  };
  Stream* Find(const RankKey& key);
  void Keep(Stream* stream, Report report);
  void Erase(Stream* stream, std::map<uint64_t, Report>::iterator report);
  void DropOver(size_t limit, const size_t& held, std::set<uint64_t> Stream::*of_kind);

  Limits limits_;
  std::vector<std::pair<RankKey, Stream>> streams_;  // Oldest first; seldom more than two.
  // Last numbers of forgotten ranks, for a report that comes after all (the answer to a late KillRank). Bounded.
  std::vector<std::pair<RankKey, uint64_t>> forgotten_;
  size_t event_bytes_ = 0;
  size_t log_bytes_ = 0;
  uint64_t num_dropped_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_SUPERVISION_REPORT_BUFFER_H_
