// Runs the rank processes that the supervisor asks for: start files, status block, pipes, log file. Reads what they say
// and tells the supervisor.
#ifndef TACC_WORKER_DAEMON_HOST_RANK_HOST_H_
#define TACC_WORKER_DAEMON_HOST_RANK_HOST_H_

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/optional.h"
#include "confinement/cgroup.h"
#include "confinement/confine.h"
#include "nlohmann/json_fwd.hpp"
#include "process/child_process.h"
#include "worker/daemon/host/rotating_log.h"
#include "worker/daemon/host/run_log.h"
#include "worker/daemon/host/state_directory.h"
#include "worker/daemon/supervision/line_splitter.h"
#include "worker/daemon/supervision/supervisor.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {

// How a rank is started: ChildProcess::Start, outside of tests.
using StartProcess = std::function<absl::StatusOr<std::unique_ptr<ChildProcess>>(const ProcessOptions& options)>;

// What this daemon gives its ranks: it sets these fields of their start files.
struct RankPlace {
  std::string rank_path;  // tacc-rank.
  std::string device;
  int num_threads = 1;
  int64_t memory_bytes = 0;
  std::string advertise;
  std::string interface;  // That has this address; empty: not known.
  // For what the ranks share with processes of this user alone; empty: with all who reach `advertise`.
  std::string local_folder;
  std::string worker;  // This daemon's name.
  // The folder on this machine of what a client has uploaded, by its id.
  std::function<std::string(const std::string& id)> upload_path;
  // To which its ranks confine themselves, and this daemon what it does with their files.
  Confinement confinement = {};
  // Libraries of operators, absolute paths that TrustedFile has found. A rank may load these and no others.
  std::vector<std::string> op_libraries = {};
  // For one of its own for each rank; borrowed. Null: ranks have this daemon's.
  Cgroups* cgroups = nullptr;
};

// Returns the start file's JSON with the daemon's fields set. Errors: InvalidArgument when it is not a JSON object.
absl::StatusOr<std::string> CompleteStart(const std::string& start_json, const std::string& program_path,
                                          const RankPlace& place);

// Not thread-safe. Destroying it kills and reaps the process. A process that was given up is left, and its record stays
// for the next daemon.
class RankHost {
 public:
  // The pointers are borrowed and must outlive it.
  RankHost(RankPlace place, StartProcess start_process, StateDirectory* state, Supervisor* supervisor, RotatingLog* log,
           RunLog* run_log)
      : place_(std::move(place)),
        start_process_(std::move(start_process)),
        state_(state),
        supervisor_(supervisor),
        log_(log),
        run_log_(run_log) {}
  ~RankHost();

  // Is called with the id of an upload that the rank asks for.
  void OnFetch(std::function<void(const std::string& id)> fetch) { fetch_ = std::move(fetch); }

  // Sets the memory of ranks that start from now on.
  void SetMemoryBytes(int64_t bytes) { place_.memory_bytes = bytes; }

  // The process that runs, for the host of a daemon that takes this one's place; null: none does. This object lets go
  // of it, so that only destroying it may follow. TakeOver is of a new one, whose supervisor has taken over before;
  // nlohmann's exceptions: it was not made by HandOver.
  nlohmann::json HandOver();
  absl::Status TakeOver(const nlohmann::json& handed);

  // Does the supervisor's actions.
  void Do(Supervisor::Actions actions);

  // Kills a rank as the coordinator asks, unless its process has ended by itself: that end may be why the coordinator
  // asks, told by another rank that missed this one, so it is reported as it was.
  void KillRank(const RankKey& key);

  // Descriptors to wait for; none when no process runs.
  std::vector<pollfd> PollDescriptors() const;
  // True when the process has closed its pipes and is about to be reaped: look again within milliseconds.
  bool IsEnding() const { return child_ != nullptr && child_->stdout_fd() < 0 && child_->stderr_fd() < 0; }
  // Reads and writes what is possible now, and reaps.
  void Turn();

  // The process that runs, or has been given up, for people; empty when there is none.
  std::string Process() const { return child_ == nullptr ? "" : ProcessText(child_->pid()); }

  // Takes a sample of the status block at `now` (seconds of an AwakeClock: a rank is not still because it was stopped
  // together with this daemon). Nothing when no process runs.
  struct Sample {
    RankStatus status;
    double still_seconds = 0;
    int64_t peak_memory_bytes = 0;  // VmHWM of the process; 0: not known.
  };
  absl::optional<Sample> TakeSample(double now);

  uint64_t ranks_started() const { return ranks_started_; }

 private:
  absl::Status Spawn(const RankStart& start);
  void BeginLines();
  // Ends the process and all that it has started.
  void Kill();
  // Says so for a rank that the kernel has ended for want of memory.
  void TellOutOfMemory(const ProcessEnd& end);
  std::string StatusBlockName(const RankKey& key) const;
  // Writes lines from now on to this rank's log.
  void BeginLog(const RankStart& start);
  void HandleOutput(const std::string& out, const std::string& err);
  void EventLines(const std::vector<std::string>& lines);
  void LogLines(const std::vector<std::string>& lines);

  RankPlace place_;
  const StartProcess start_process_;
  StateDirectory* const state_;
  Supervisor* const supervisor_;
  RotatingLog* const log_;
  RunLog* const run_log_;
  std::function<void(const std::string& id)> fetch_;
  std::unique_ptr<Cgroup> cgroup_;  // Of child_; null: the daemon's.
  std::unique_ptr<ChildProcess> child_;
  std::unique_ptr<StatusBlock> status_block_;
  absl::optional<LineSplitter> out_lines_;
  absl::optional<LineSplitter> err_lines_;
  RunLog::Place log_place_;  // Of the last rank.
  RankStatus last_status_;
  absl::optional<double> still_since_;  // None: not looked at since it started.
  uint64_t ranks_started_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_DAEMON_HOST_RANK_HOST_H_
