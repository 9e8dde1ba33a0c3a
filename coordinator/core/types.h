// What goes into the coordinator's core and what comes out of it. All plain values: the core has no clock, thread,
// socket or disk.
#ifndef TACC_COORDINATOR_CORE_TYPES_H_
#define TACC_COORDINATOR_CORE_TYPES_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "tacc/v1/coordinator.pb.h"
#include "tacc/v1/fact.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

struct Time {
  double steady = 0;  // Seconds of a clock that only rises.
  double wall = 0;    // Seconds since the epoch: what people and files see.
};

// Whose jobs a caller sees and changes: those of one project, all, or (by default) none.
struct JobScope {
  bool all = false;
  std::string project;

  bool Has(const std::string& project_of_job) const { return all || (!project.empty() && project == project_of_job); }
};

// ---- Inputs.

// Time has passed. Expected at least each second.
struct Tick {};
// `tag` comes back in Reply.
struct SubmitJob {
  uint64_t tag = 0;
  std::string request_id;  // Not empty.
  v1::JobSpec spec;
  JobScope scope;  // Of who submits it: the job is of that project, or of none.
};
struct CancelJob {
  uint64_t tag = 0;
  std::string job;
  v1::CancelMode mode = v1::CANCEL_MODE_NOW;
  JobScope scope;
};
// Answers to StartCompile.
struct CompileDone {
  std::string job;
  std::string summary;                            // summary.json of tacc-plan.
  std::string data;                               // Output of tacc-data check.
  std::string identity;                           // JSON object.
  std::string directory;                          // Of the compiler's output, in the job's folder.
  std::vector<std::string> program_fingerprints;  // By stage.
  double seconds = 0;
};
struct CompileFailed {
  std::string job;
  std::string message;
  v1::FailureCode code = v1::FAILURE_CODE_COMPILE;
};
// Answer to SendToWorker of a StartRank whose program cannot be read: nothing was sent.
struct ProgramUnread {
  v1::RankId id;
  std::string message;
  bool is_lost = false;  // It is missing or torn: it has to be compiled again.
};
// A daemon registered on a new stream; `session` is never used again.
struct WorkerAttached {
  uint64_t session = 0;
  v1::Register registration;
};
struct WorkerDetached {
  uint64_t session = 0;
};
// Any other message of a daemon.
struct WorkerMessage {
  uint64_t session = 0;
  v1::AttachRequest message;
};

using Input = std::variant<Tick, SubmitJob, CancelJob, CompileDone, CompileFailed, ProgramUnread, WorkerAttached,
                           WorkerDetached, WorkerMessage>;

// ---- Decisions, to be carried out in this order: what is stored is durable before what follows leaves the process.

struct LogFact {
  v1::Fact fact;
};
struct StoreStep {
  std::string job;
  v1::StepMetrics step;
};
struct StoreEval {
  std::string job;
  v1::EvalMetrics eval;
};
struct StoreEvent {
  std::string job;
  v1::JobEvent event;
};
// Reports of the rank up to `sequence` have been acted upon.
struct StoreSequence {
  v1::RankId id;
  uint64_t sequence = 0;
};
struct StoreLog {
  v1::RankId id;
  v1::RankLog log;
};
// Everything stored about an ended job goes: facts, events, metrics, logs, its folder. Checkpoints stay.
struct ForgetJob {
  std::string job;
};
struct StartCompile {
  std::string job;
  int world = 0;  // 0: the planner decides.
  v1::DeviceProfile device;
  std::string precision, residual_dtype;  // That it has run in; empty: it has not.
};
struct StopCompile {
  std::string job;
};
// StartRank carries no program text: whoever sends it adds that of the job.
struct SendToWorker {
  uint64_t session = 0;
  v1::AttachResponse message;
};
struct CloseSession {
  uint64_t session = 0;
  absl::Status status;
};
struct Reply {
  uint64_t tag = 0;
  absl::Status status;
  std::string job;
  bool existed = false;
};

using Decision = std::variant<LogFact, StoreStep, StoreEval, StoreEvent, StoreSequence, StoreLog, ForgetJob,
                              StartCompile, StopCompile, SendToWorker, CloseSession, Reply>;
using Decisions = std::vector<Decision>;

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_TYPES_H_
