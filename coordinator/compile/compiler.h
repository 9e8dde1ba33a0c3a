// Checks data, plans and compiles jobs in child processes, so that a crash, a hang or hunger for memory there costs one
// job and never a heartbeat.
#ifndef TACC_COORDINATOR_COMPILE_COMPILER_H_
#define TACC_COORDINATOR_COMPILE_COMPILER_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "confinement/allowed_paths.h"
#include "coordinator/compile/request.h"
#include "coordinator/core/types.h"
#include "process/run_program.h"
#include "tacc/v1/job.pb.h"

namespace tacc::coordinator {

// Thread-safe. Works off one request after the other on a thread of its own.
class Compiler {
 public:
  struct Options {
    std::string plan_binary;  // tacc-plan
    std::string data_binary;  // tacc-data
    std::string jobs_dir;     // What is made for job ID lies in jobs_dir/ID/compile-N, N counting its compilations.
    RunLimits limits = {.memory_bytes = int64_t{8} << 30};  // Of each run of a tool.
    // A tool that somebody else ends by a signal (the kernel for want of memory, an operator) is run again after so
    // many seconds, once for each entry.
    std::vector<double> retry_seconds = {1, 3, 9};
    // Where files of jobs may be. The tools are confined to them, for reading, and to the folder of what they make.
    AllowedPaths paths = {};
    // Where a folder is that a client has uploaded, by its id.
    std::function<std::string(const std::string& id)> upload_path;
  };
  // Called on the compiler's thread, once per Start that was not stopped.
  using Done = std::function<void(Input)>;
  struct Plans {
    std::string candidates;  // JSON, as tacc-plan prints it
    std::string request;     // JSON, what it was asked
  };
  using Planned = std::function<void(absl::StatusOr<Plans>)>;

  explicit Compiler(Options options);
  ~Compiler();  // Shutdown.

  // Kills the running child and ends the thread. Starts in the queue are dropped without a call, plans are answered
  // with Cancelled. Idempotent.
  void Shutdown();

  void Start(const StartCompile& start, const v1::JobSpec& spec, Done done);
  void Stop(const std::string& job);
  // `tacc-plan plan`, when no job waits to be compiled. InvalidArgument: bad input, as tacc-plan says it.
  // ResourceExhausted: too many wait already. Once `*cancel` is true the planner is killed, or not started: Cancelled.
  void Plan(const v1::JobSpec& spec, const PlanTarget& target, std::shared_ptr<std::atomic<bool>> cancel,
            Planned planned);

  // Removes the folder of a job that is not being compiled.
  void Forget(const std::string& job) const;

  // Program text of a stage of a compiled job. NotFound, DataLoss: it is missing, or not what was compiled;
  // Unavailable: it cannot be read for now.
  absl::StatusOr<std::string> ReadProgram(const std::string& job, const v1::JobCompiled& compiled, int stage) const;
  // The step of a job with train.trace_step as its plan predicts it (graph/trace/step_trace.h). NotFound, Unavailable.
  absl::StatusOr<std::string> ReadPredictedTrace(const std::string& job, const v1::JobCompiled& compiled) const;

 private:
  struct Work {
    std::string job;  // Empty: a Plan.
    std::function<void(const std::atomic<bool>& cancel)> run;
    std::shared_ptr<std::atomic<bool>> cancel = std::make_shared<std::atomic<bool>>(false);
  };

  void Loop();
  // Runs the check of the data, writes the request into `dir`, runs tacc-plan. Returns its stdout.
  absl::StatusOr<std::string> CheckAndRun(const v1::JobSpec& spec, const PlanTarget& target, const std::string& dir,
                                          bool compile, const std::atomic<bool>& cancel);
  // Runs a tool to an end of its own, again where somebody else ended it, and returns its stdout.
  absl::StatusOr<std::string> RunTool(const std::vector<std::string>& arguments, const std::string& dir,
                                      const std::atomic<bool>& cancel);

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<Work>> queue_;
  std::shared_ptr<Work> running_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_COMPILE_COMPILER_H_
