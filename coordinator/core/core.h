// The coordinator's state machine: one input in, decisions out. Deterministic: the same inputs at the same times give
// the same decisions. Durable state changes by facts only: each decided fact is applied at once and handed out as
// LogFact; after a restart Replay applies the stored ones, and workers that register again bring the rest.
//
// Not thread-safe. Invariants:
//   1. At most one attempt of a job is active, and the next starts only when every rank of it has ended: reaped, or its
//      worker's lease is over.
//   2. A worker holds ranks of one attempt at most (`reserved`).
//   3. A report of a rank that is not of the active attempt, or comes from another worker than the placement's, changes
//      nothing.
#ifndef TACC_COORDINATOR_CORE_CORE_H_
#define TACC_COORDINATOR_CORE_CORE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/core/hang.h"
#include "coordinator/core/job_state.h"
#include "coordinator/core/membership.h"
#include "coordinator/core/placement.h"
#include "coordinator/core/rank_event.h"
#include "coordinator/core/types.h"
#include "machine/clock.h"

namespace tacc::coordinator {

// The number N in the id NAME-N of a job.
int64_t IdNumber(const std::string& id);

class Core {
 public:
  struct Options {
    std::string version;
    // What no other coordinator has, and this one after each start: tells its jobs from those of others in one folder.
    std::string service;
    double lease_seconds = 10;
    double heartbeat_seconds = 1;
    // A worker has this long to look at paths (a network file system may be slow).
    double path_check_seconds = 60;
    double collective_timeout_seconds = 300;
    // Ended jobs that are kept, at least 1; of more the one that ended first is forgotten.
    size_t max_ended_jobs = 1000;
    // Ids of new jobs have larger numbers: up to this one there may have been jobs that are not in the log any more.
    int64_t last_id_number = 0;
  };
  Core(Options options, DescribeInstruction describe);

  // ---- Replay, before the first Handle, in stored order.
  // Internal: the log does not fit together.
  absl::Status Replay(const v1::Fact& fact);
  // Nothing, where the job, or the attempt, is not the last one that the facts tell of.
  void ReplaySequence(const v1::RankId& id, uint64_t sequence);
  void ReplayStep(const std::string& job, const v1::StepMetrics& step);
  void ReplayEval(const std::string& job, const v1::EvalMetrics& eval);
  // Replay is over: each worker with a rank of an active attempt gets one full lease.
  void Resume(Time now);

  // Changes the state by one input, and returns what is to be carried out. A Tick comes a few times a second, and only
  // after what was there to handle before it.
  Decisions Handle(Time now, const Input& input);

  // The clock of leases and deadlines at `now`, in seconds: it does not count time in which no Tick came, for then it
  // is this process that was silent, not its workers.
  double AwakeSeconds(Time now) const { return clock_.At(now.steady); }

  // ---- Reading. What is returned is valid until the next Handle.
  const std::map<std::string, JobState>& jobs() const { return jobs_; }
  const Membership& members() const { return members_; }
  // By id, or the newest of that name, of those in the scope; nullptr when there is none.
  const JobState* Find(const std::string& id_or_name, const JobScope& scope) const;

 private:
  // core.cc: jobs.
  void OnSubmit(const SubmitJob& submit);
  // Why the job cannot be accepted; OK: it can.
  absl::Status MayAccept(const SubmitJob& submit) const;
  void OnCancel(const CancelJob& cancel);
  // Cancels an open job; nothing, when it was cancelled already and no less harshly. `why` begins the event's text.
  void Cancel(JobState* job, v1::CancelMode mode, const std::string& why);
  void OnCompileDone(const CompileDone& done);
  void OnCompileFailed(const CompileFailed& failed);
  void OnProgramUnread(const ProgramUnread& unread);
  void EndJob(JobState* job, v1::Phase phase, const std::string& reason, v1::FailureCode code,
              const std::vector<std::string>& log_lines);
  // Starts what can start: compiles, path checks.
  void Schedule();
  void ScheduleCompiles();
  // Compiles a compiled job anew; `why` ends the event's text.
  void CompileAgain(JobState* job, const v1::DeviceProfile& device, const std::string& why);
  void SetWaiting(JobState* job, const std::string& reason);
  // Files of the job are away, as `what` says: it waits and looks again, at first soon, then each kMaxDelaySeconds.
  void WaitOut(JobState* job, const std::string& what);

  // start.cc: from a gang to a running attempt.
  void StartPathCheck(JobState* job, const std::vector<std::string>& workers);
  void SendPathCheck(JobState* job, const std::string& worker, v1::CheckPathsMode mode);
  void OnPathsChecked(Worker* worker, const v1::CheckPathsResult& result);
  void AbandonPathCheck(JobState* job);
  void StartAttempt(JobState* job);
  void TellStarted(const JobState& job);
  void SendRendezvous(JobState* job, int rank);

  // workers.cc: membership and messages of workers.
  void OnAttached(const WorkerAttached& attached);
  void OnDetached(uint64_t session);
  void OnMessage(const WorkerMessage& message);
  void OnHeartbeat(Worker* worker, const v1::Heartbeat& heartbeat);
  void OnTick();
  // Forgets pages that the worker was asked for: its answers are of a stream that is over.
  void ForgetReports(const std::string& worker);
  // Ends the ranks of a worker that is gone, or came back without them.
  void LoseRanks(const std::string& worker, const std::string& why);
  // Sends again what a worker that reattached may have missed.
  void CatchUp(Worker* worker, JobState* job, int rank);

  // ranks.cc: reports of ranks.
  void OnReport(Worker* worker, const v1::RankReport& report);
  void OnRankEvent(JobState* job, int rank, const RankEvent& event);
  void OnReady(JobState* job, int rank, const RankEvent& event);
  // Rank 0's, which alone says where the ranks meet and what a step gave.
  void OnListening(JobState* job, const RankEvent& event);
  void OnStep(JobState* job, const RankEvent& event);
  void OnExited(JobState* job, int rank, const v1::RankExited& exited);
  void OnCheckpoint(JobState* job, v1::Checkpoint checkpoint);
  // Asks rank 0's worker to delete what save_total_limit leaves no room for, and what earlier attempts left unlogged.
  void DeleteOldCheckpoints(JobState* job);
  void OnWarning(JobState* job, int rank, const RankEvent& event);
  // Drops the checkpoint that the attempt was to begin with: a rank has read it, and it is damaged.
  void DropResume(JobState* job);
  void OnDeleted(const Worker& worker, const v1::DeleteCheckpointsResult& result);
  // Asks a worker for the page about a job that has ended, where its rank 0 has not written it at its own end.
  void AskForReport(JobState* job);
  void OnReportWritten(const Worker& worker, const v1::WriteReportResult& result);
  // Tells a worker that the folder of a job that has ended is anybody's, where its rank 0 has not said so.
  void LeaveFolder(const JobState& job);
  // An attached worker of the last attempt, or the one that has claimed the folder last; null: none is attached.
  const Worker* WorkerOf(const JobState& job);
  // Kills what has to go, and ends the attempt when all ranks have ended.
  void Advance(JobState* job);
  // end_attempt.cc: what the end of an attempt means for its job.
  void EndAttempt(JobState* job);

  // Output.
  void Log(JobState* job, v1::Fact fact);
  void Tell(const JobState& job, const std::string& type, const std::string& message);
  void Send(const Worker& worker, v1::AttachResponse message);
  void Release(const std::string& job);
  // Forgets the jobs that ended first while there are more than are kept.
  void ForgetEndedJobs();

  JobState* FindOpen(const std::string& id);
  // The rank of an active attempt, on this worker; nullptr otherwise.
  RankState* FindRank(const Worker& worker, const v1::RankId& id, JobState** job);

  const Options options_;
  const DescribeInstruction describe_;
  Membership members_;
  std::map<std::string, JobState> jobs_;
  // Project and request id -> job id.
  std::map<std::pair<std::string, std::string>, std::string> by_request_;
  std::map<int64_t, std::string> queue_;  // Jobs that have not ended, by number.
  std::deque<std::string> ended_;         // Jobs that have, in the order in which they did.
  AwakeClock clock_;
  int64_t gone_number_;      // The largest in an id of a job that is not known any more.
  int64_t last_number_ = 0;  // Of the queue.
  uint64_t last_request_ = 0;

  // During Handle. `steady` is of clock_.
  Time now_;
  Decisions out_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_CORE_H_
