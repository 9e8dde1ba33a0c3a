// The one thread that drives the core: takes inputs, stores what the core decides, and only then lets it out.
#ifndef TACC_COORDINATOR_SERVICE_LOOP_H_
#define TACC_COORDINATOR_SERVICE_LOOP_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/compile/compiler.h"
#include "coordinator/core/core.h"
#include "coordinator/core/types.h"
#include "coordinator/service/log_files.h"
#include "coordinator/store/job_number.h"
#include "coordinator/store/store.h"

namespace tacc::coordinator {

// Where messages to workers go. Thread-safe.
class WorkerOutlet {
 public:
  virtual ~WorkerOutlet() = default;
  virtual void Send(uint64_t session, v1::AttachResponse message) = 0;
  virtual void Close(uint64_t session, const absl::Status& status) = 0;
};

// Told when a job has something new to read. Called on the loop's thread.
class Watcher {
 public:
  virtual ~Watcher() = default;
  virtual void Wake() = 0;
};

// Counts kept since this process started, for /metrics.
struct LoopStats {
  uint64_t commits = 0;
  double commit_seconds = 0;
  uint64_t inputs = 0;
};

class Loop {
 public:
  struct Parts {
    Core* core = nullptr;
    Store* store = nullptr;
    Compiler* compiler = nullptr;
    LogFiles* logs = nullptr;
    const JobNumberFile* job_number = nullptr;
    WorkerOutlet* workers = nullptr;
    std::function<Time()> clock;
    // Decisions could not be stored: the process must end, for it may not act on what it cannot remember. Calls that
    // wait are answered with Unavailable. Not called for a full disk: that is waited for, while training goes on and
    // workers keep their reports.
    std::function<void(const absl::Status&)> fatal;
  };
  explicit Loop(Parts parts);
  ~Loop();  // Stops.

  // The rest of a restart: asks again for compiles that were under way. Then the thread runs.
  void Start();
  // From now on a disk that fails is not waited for.
  void Close();
  // Handles what is queued, then ends the thread. Idempotent.
  void Stop();

  // All below: thread-safe.
  void Post(Input input);
  // `then` runs on the loop's thread once the input was handled.
  void Post(Input input, std::function<void()> then);
  // SubmitJob or CancelJob (their tag is set here); `reply` runs on the loop's thread once the decision is stored.
  void Ask(Input input, std::function<void(const Reply&)> reply);
  struct View {
    const Core& core;
    Store& store;
    LogFiles& logs;
    Time now;
    const LoopStats& stats;
  };
  // Runs `read` on the loop's thread, when all before it is stored.
  void Read(std::function<void(const View&)> read);
  // Wakes `watcher` when something was stored or logged for `job`, until it is gone.
  void Watch(const std::string& job, std::weak_ptr<Watcher> watcher);

 private:
  struct Item {
    Input input;
    std::function<void()> then;
    std::function<void(const View&)> read;  // Set: not an input.
  };

  void Run();
  void Handle(Item* item);
  // Stores the decisions made so far and carries them out.
  void Flush();
  // Before an id is told, its number is kept for coordinators to come.
  void KeepNumbers(const Decisions& decisions);
  // Waits while the disk is full.
  absl::Status WriteDown(const Decisions& decisions);
  void Answer(const Reply& reply);
  void RefuseAll(const Decisions& decisions);
  // Of rank 0 of a job that leaves a trace, for it to write beside the measured one.
  void AddPredictedTrace(const JobState& job, v1::StartRank* start) const;
  void CarryOut(Decision* decision, std::set<std::string>* touched);
  View MakeView() const { return {*parts_.core, *parts_.store, *parts_.logs, parts_.clock(), stats_}; }

  const Parts parts_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<Item> queue_;
  std::map<uint64_t, std::function<void(const Reply&)>> replies_;
  std::multimap<std::string, std::weak_ptr<Watcher>> watchers_;
  uint64_t last_tag_ = 0;
  bool stopping_ = false;
  bool closing_ = false;
  std::thread thread_;

  // Of the loop's thread.
  Decisions pending_;
  bool urgent_ = false;       // Something in pending_ is waited for.
  double pending_since_ = 0;  // Steady.
  double last_tick_ = 0;
  bool broken_ = false;  // A commit failed.
  LoopStats stats_;
};

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_SERVICE_LOOP_H_
