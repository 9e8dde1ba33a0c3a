// The state of one job. The durable part changes by Apply(fact) only, in replay as in life; the rest is known again
// from workers after a restart. Plain values: whoever holds them sees to threads.
#ifndef TACC_COORDINATOR_CORE_JOB_STATE_H_
#define TACC_COORDINATOR_CORE_JOB_STATE_H_

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tacc/v1/coordinator.pb.h"
#include "tacc/v1/fact.pb.h"
#include "tacc/v1/worker.pb.h"

namespace tacc::coordinator {

// What the core needs of tacc-plan's summary.json, and what is shown.
struct Summary {
  v1::PlanSummary plan;
  std::vector<std::string> notes;  // what the user should know of how the model was read
  std::string weights;             // "pretrained" or "random"; empty: of a version that did not say it
  // Parses; unknown keys are ignored. InvalidArgument when it is not an object or `world` is not positive.
  static absl::Status Parse(const std::string& text, Summary* out);
  // Stages of the pipeline; each has a program.
  int NumStages() const;
  // The one that runs on `rank`: its coordinate on the mesh axis pp.
  int StageOf(int rank) const;
};

struct RankState {
  // Durable.
  std::string worker;
  std::string instance;
  std::string advertise;
  bool ready = false;
  std::string resumed_from;
  int64_t arena_bytes = 0;
  int64_t device_memory_used_bytes = 0;  // 0: not on a GPU.
  double load_seconds = 0;
  v1::RankEndpoint endpoint;  // Without a token: no client is to come.
  std::optional<v1::RankEnded> ended;
  int end_order = 0;  // 0: the first of its attempt to end.
  // Durable, kept by the store beside the facts.
  uint64_t stored_sequence = 0;

  // Volatile.
  uint64_t seen_sequence = 0;  // Reports up to here were acted upon.
  // Event `failed`, `finished` or `stopped`: reports from it on are acknowledged with the exit only, so that a
  // coordinator that dies in between hears them again.
  std::string last_word;
  std::string failed_code;
  std::string failed_message;
  std::string stop_reason;
  std::optional<v1::RankSample> sample;
  int64_t peak_memory_bytes = 0;  // Of the newest sample; 0: none.
  bool kill_sent = false;
  bool stop_sent = false;
};

struct AttemptState {
  int number = 0;
  std::vector<RankState> ranks;
  std::string resume;
  double peak_flops_per_second = 0;
  int64_t best_step_before = 0;
  std::string host;  // Rendezvous; empty until rank 0 listens.
  int port = 0;
  std::string file;             // In place of a port.
  std::string secret;           // Of the ranks, to find one another.
  std::string condemned;        // Cause, when the coordinator ended it.
  bool resume_damaged = false;  // The checkpoint it was to resume from was dropped as damaged.
  bool over = false;            // AttemptEnded.
  int64_t step = 0;             // Reached by this attempt.
  // Newest step seconds, for medians; volatile.
  std::deque<v1::StepMetrics> recent;

  bool AllReady() const;
  bool AllEnded() const;
  // Some rank failed or is lost, or it is condemned: all ranks must go.
  bool Failing() const;
};

// A look at the workers' paths before an attempt; volatile.
struct PathCheck {
  std::vector<std::string> workers;         // By rank.
  std::map<uint64_t, std::string> pending;  // Request -> worker.
  bool expecting = false;                   // CLAIM is done.
  std::string owner;
  v1::CheckPathsResult claim;
  double deadline = 0;  // Seconds of the core's clock.
};

// What a job that waits for files that are away needs to know; volatile.
struct Outage {
  double delay_seconds = 0;  // Between the last two looks.
  double next_look = 0;      // Seconds of the core's clock.
  std::string reason;        // What was away last; empty: it is back, as far as is known.
  // Ranks have found it, not the look before them: their next attempts are not told until one runs.
  bool in_attempts = false;
};

// Checkpoints that a worker was asked to delete; volatile.
struct Deletion {
  std::string worker;
  std::vector<std::string> names;
};

struct JobState {
  // Durable.
  std::string id;
  std::string request_id;
  std::string project;  // Empty: of none.
  v1::JobSpec spec;
  int64_t number = 0;
  double submitted_time = 0;
  double started_time = 0;
  double ended_time = 0;
  bool compiled = false;
  v1::JobCompiled compile;
  Summary summary;
  int first_attempt = 0;
  int64_t step_before = 0;  // That the run had reached before this job took its folder over.
  std::optional<AttemptState> attempt;
  std::vector<v1::AttentionChoice> attention;  // As the newest attempt that chose said; the next ones keep it.
  std::vector<v1::ProductChoice> products;     // As attention.
  std::vector<v1::Restart> restarts;
  int restarts_without_progress = 0;
  bool counted_before = false;                              // The attempt before this one ended by a counted failure.
  std::vector<v1::Checkpoint> checkpoints;                  // Oldest first.
  int num_damaged = 0;                                      // Checkpoints that it had, and that were damaged.
  std::optional<v1::CheckpointFailure> checkpoint_failure;  // Since the last checkpoint; of its words the newest.
  std::optional<v1::CancelMode> cancel;
  std::string exported_path;
  std::optional<v1::JobEnded> ended;

  // Durable by the metric table.
  int64_t best_step = 0;  // That any attempt reached.
  // Where training stands: what the newest attempt has done, on top of what it began with.
  int64_t step = 0;
  std::optional<v1::StepMetrics> last_step;
  std::optional<v1::EvalMetrics> last_eval;
  int64_t skipped_steps = 0;

  // Volatile.
  bool compiling = false;
  bool program_lost = false;  // It has to be compiled again, for the same device.
  v1::DeviceProfile compiling_for;
  // Devices that the compiler refused for this compiled job, and why: it waits for others.
  std::map<std::string, std::string> refused;
  std::optional<PathCheck> check;
  std::string reason;                     // Why it waits.
  std::optional<Outage> outage;           // From the first sight of one until the next new step.
  std::map<uint64_t, Deletion> deleting;  // DeleteCheckpoints in flight, by request.
  bool running_told = false;
  std::string claimer;  // The worker that has claimed checkpoint.dir for it last; empty: none has.
  // Who writes the page about its end: request and worker.
  std::optional<std::pair<uint64_t, std::string>> report;

  // Its checkpoint folder is claimed, and may hold what it wrote.
  bool HasRun() const { return attempt.has_value(); }
  bool Active() const { return attempt.has_value() && !attempt->over; }
  v1::Phase Phase() const;
  int World() const;
  // ", last checkpoint NAME": the end of a sentence that says where it stopped; empty when there is none.
  std::string LastCheckpointText() const;
  // Updates that are wanted; 0: they follow from epochs, and the job is not planned yet.
  int64_t MaxSteps() const;
};

// Changes `job` by one fact of it. Internal when the fact does not fit the state (a damaged log).
absl::Status Apply(const v1::Fact& fact, JobState* job);

// Take the newest metrics of a job: live, and when the store is read back.
void NoteStep(const v1::StepMetrics& step, JobState* job);
void NoteEval(const v1::EvalMetrics& eval, JobState* job);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_CORE_JOB_STATE_H_
