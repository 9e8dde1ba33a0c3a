// The rules of one device: at most one rank process, older ones killed and reaped before a newer one starts, everything
// that happens to a rank reported once and in order. Pure: no clock, process or connection; the caller does the
// actions.
#ifndef TACC_WORKER_DAEMON_SUPERVISION_SUPERVISOR_H_
#define TACC_WORKER_DAEMON_SUPERVISION_SUPERVISOR_H_

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "nlohmann/json_fwd.hpp"
#include "process/child_process.h"
#include "worker/daemon/supervision/rank_key.h"
#include "worker/daemon/supervision/report_buffer.h"

namespace tacc::worker {

struct RankStart {
  RankKey key;
  std::string start_json;  // As the coordinator sent it.
  std::string program_text;
};

struct Action {
  enum class Kind {
    kSpawn,       // Start `start`; then Started or StartFailed is called.
    kKill,        // SIGKILL the running process and its group; Exited is called once it is reaped.
    kCloseStdin,  // Ask the running process to end.
    kWriteLine,   // Write `line` to the running process's stdin.
  };
  Kind kind;
  RankStart start;
  std::string line;
};

// Not thread-safe. `now` is seconds since the epoch, for the times in reports; it need not be steady. Every method
// returns the actions to do, in order.
class Supervisor {
 public:
  using Actions = std::vector<Action>;
  explicit Supervisor(const ReportBuffer::Limits& limits) : reports_(limits) {}

  // From the coordinator.
  Actions StartRank(RankStart start, double now);
  Actions KillRank(const RankKey& key, double now);
  Actions RankCommand(const RankKey& key, std::string line);

  // From the process.
  Actions StartFailed(const std::string& error, double now);
  void EventLine(const std::string& line, double now);
  void LogLine(const std::string& line, double now);
  // The daemon's own warning about the running rank, as an event of it.
  void Warn(const std::string& code, const std::string& message, double now);
  // Why the running rank has failed, where it could not say so itself: as its event `failed`.
  void Fail(const std::string& code, const std::string& message, double now);
  Actions Exited(const ProcessEnd& end, double now);

  // Forwards log lines that wait for company; called a few times a second.
  void FlushLogs(double now);

  // The state of the rank's process.
  enum class Process {
    kNone,
    kRunning,
    kFailed,  // Its rank has said `failed`: it should end by itself soon.
    kKilled,
    kStuck,  // Given up.
  };
  Process process() const;
  // Gives up a process that was killed and does not end, for the reason `why`: its rank is reported as gone, with a
  // warning, and no rank starts until Exited is called after all.
  void GiveUp(const std::string& why, double now);

  // Returns in words what went wrong with a rank since the last call; nothing when none has failed by itself. Bad
  // input, and a stop for a loss that is not finite or does not move, are no failure: the device is not to blame. The
  // late end of a process that was given up is one.
  absl::optional<std::string> TakeFailure();

  // Ends the daemon's work: no rank starts any more, and the running one is asked to end. Kill ends it at once.
  Actions Stop(double now);
  Actions Kill();

  // Every rank that runs, waits to run, or has reports that were not acknowledged.
  std::vector<HeldRank> Held() const;
  // The rank whose process has not been reaped.
  const absl::optional<RankKey>& running() const { return running_; }
  ReportBuffer& reports() { return reports_; }
  const ReportBuffer& reports() const { return reports_; }
  // The numbers of the running rank's last event of each kind, for metrics: "step.loss", "eval.seconds".
  const std::map<std::string, double>& metrics() const { return metrics_; }

  // Whether another daemon can take this one's place now: no end of a process is under way, and no rank waits for one.
  bool CanHandOver() const;
  // For the supervisor of that daemon, if CanHandOver. TakeOver is of a new one; nlohmann's exceptions: it was not made
  // by HandOver.
  nlohmann::json HandOver() const;
  void TakeOver(const nlohmann::json& handed);

 private:
  void AddExit(const RankKey& key, ExitReport exit, double now);
  Actions Begin(RankStart start);
  Actions BeginNext();

  ReportBuffer reports_;
  absl::optional<RankKey> running_;
  bool kill_sent_ = false;
  bool killed_on_request_ = false;  // By KillRank, or because the daemon ends.
  bool said_end_ = false;           // The event `finished` or `stopped` was seen.
  bool is_stopping_ = false;
  absl::optional<std::string> stuck_;  // Why no rank can start.
  std::string failed_message_;         // Of the running rank's event `failed`.
  absl::optional<std::string> failure_;
  absl::optional<RankStart> next_;       // Starts when the running one is reaped.
  std::vector<std::string> next_lines_;  // Commands for it.
  std::vector<std::string> pending_logs_;
  std::deque<std::string> last_log_lines_;
  std::map<std::string, double> metrics_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_SUPERVISION_SUPERVISOR_H_
