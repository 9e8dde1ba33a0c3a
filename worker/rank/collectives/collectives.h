// Collectives as the executor sees them: started, waited for, counted and timed, by the host or by a device's queue.
#ifndef TACC_WORKER_RANK_COLLECTIVES_COLLECTIVES_H_
#define TACC_WORKER_RANK_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/rank/collectives/collective_call.h"
#include "worker/rank/collectives/collective_engine.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {

class DeviceClock;

struct CollectiveStats {
  int64_t num_calls = 0;
  int64_t bytes_sent = 0;   // Payload, by this rank.
  double busy_seconds = 0;  // While a collective ran, overlapped with compute or not.
  double wait_seconds = 0;  // While the caller was blocked in Run or Wait.
};

// When a collective ran, in seconds of SteadySeconds().
struct CollectiveTime {
  double begin = 0;
  double end = 0;
  int64_t sent_bytes = 0;  // Payload, by this rank.
};

// How far a device is with the collectives queued on it.
struct CollectiveProgress {
  uint64_t num_moves = 0;     // Begins and ends of collectives and messages so far.
  bool is_under_way = false;  // A collective (not a message) has begun and not ended.
};

// Where an executor starts the collectives of its program: on a thread of the host, or queued on a device
// ("asynchronous" below). One thread uses it, but for Progress.
class CollectiveQueue {
 public:
  using Ticket = int64_t;

  virtual ~CollectiveQueue() = default;

  // Takes the memory that `call` needs; comes before its first Start. `call` must stay while it may be
  // started or is under way.
  virtual absl::Status Prepare(const CollectiveCall* call) = 0;
  // Connects the ranks where they are not connected yet, and returns when all are. Called once by all ranks, after the
  // last Prepare and before the first Start. Errors: Unavailable when a rank does not answer in time.
  virtual absl::Status Open() { return absl::OkStatus(); }
  // Asynchronous: tags what is queued from now on with the program's call index `call`. Not called while recording.
  virtual absl::Status EnterCall(uint32_t /*call*/) { return absl::OkStatus(); }
  // Starts `call` on the memory that it names, behind the work that its device has been given. The ticket is for
  // Wait, or for Finish.
  virtual absl::StatusOr<Ticket> Start(const CollectiveCall* call) = 0;
  // Orders what the device is given from now on after the collective. Errors: Unavailable, with the rank that did not
  // answer.
  virtual absl::Status Wait(Ticket ticket) = 0;
  // The same for a message, which Start(&call) gave `ticket`: it has been sent or has arrived.
  virtual absl::Status Finish(const CollectiveCall& call, Ticket ticket) = 0;
  // Start and Wait.
  virtual absl::Status Run(const CollectiveCall& call) = 0;
  // Asynchronous: the first error of what has been queued. Waits for nothing.
  virtual absl::Status Check() { return absl::OkStatus(); }
  // Asynchronous: how far the device is. Any thread may call it.
  virtual CollectiveProgress Progress() const { return {}; }
  // Times what is started from now on, until TakeTimes, for traces. Nothing may be recorded meanwhile.
  virtual absl::Status StartTiming() = 0;
  // Ends StartTiming and returns an entry for each Start and Run since, in their order. All of them have been waited
  // for, by the host too. `clock` is the device's, aligned before StartTiming; a CPU's need not be aligned.
  virtual absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock& clock) = 0;
  // True (asynchronous): collectives are queued on the device and can be recorded (Device::Record); messages cannot, as
  // they may outlast a recording. False: the host takes part.
  virtual bool is_on_device() const = 0;
};

// The collectives of one rank. They run one at a time, in the order of Start, on a thread of their own: the order is
// total, across groups too, so ranks that start the same collectives in the same order never wait for each other in a
// circle. (A Run while nothing else is in flight runs on the calling thread: a hand-over costs more than a small
// message.) Sums are taken in the order of ranks in f32, so results do not depend on time and are the same bits on
// every rank.
//
// A group with equally many ranks, two or more, on each of several machines moves in two levels (two_levels.h), so that
// no more goes between machines than a ring would send. A sum then takes the ranks of each machine first, in their
// order, rounds to the summands' type, and sums the results in the order of machines.
//
// Staging for strided regions and sums: at most CollectiveEngine::kStagingBytes, taken at once.
//
// A message (kSend, kReceive) is only posted in that order; then it travels beside everything else, and Finish waits
// for it. So ranks that send to each other do not wait in a circle.
//
// One thread calls all methods. After an error the object can only be destroyed.
class Collectives : public CollectiveQueue {
 public:
  // Makes rank `rank` of `world`. Programs can be bound to it before Connect.
  Collectives(int rank, int world);
  ~Collectives() override;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Comes before the first call, in a world of more than one. `transport` must outlive the object.
  void Connect(Transport* transport) { engine_.Connect(transport); }

  int rank() const { return rank_; }
  int world() const { return world_; }
  // As Transport::machine_of.
  int machine_of(int rank) const { return engine_.machine_of(rank); }

  absl::Status Prepare(const CollectiveCall*) override { return absl::OkStatus(); }
  absl::StatusOr<Ticket> Start(const CollectiveCall* call) override;
  // Returns when the collective has ended.
  absl::Status Wait(Ticket ticket) override;
  absl::Status Finish(const CollectiveCall& call, Ticket ticket) override;
  absl::Status Run(const CollectiveCall& call) override;
  // A message's time runs from its post to the end of Finish. Those of collectives do not overlap.
  absl::Status StartTiming() override;
  absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock& clock) override;
  bool is_on_device() const override { return false; }

  // Returns rank r's `values` at [r]; ranks agree on small things by it. All ranks call it, with equally many values.
  absl::StatusOr<std::vector<std::vector<uint64_t>>> GatherHost(const std::vector<uint64_t>& values);
  // Returns when every rank has called it.
  absl::Status Barrier();

  CollectiveStats stats() const;

 private:
  void Loop();
  // The entry for the times of the call with `ticket`, or null when it is not timed.
  CollectiveTime* TimeOf(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Posts the message of `call` on this thread and counts it as done.
  void Post(const CollectiveCall* call);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !queue_.empty(); }

  const int rank_;
  const int world_;
  CollectiveEngine engine_;
  mutable absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<const CollectiveCall*> queue_ ABSL_GUARDED_BY(mutex_);
  int64_t num_started_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t num_done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);  // The first error.
  CollectiveStats stats_ ABSL_GUARDED_BY(mutex_);
  bool is_timing_ ABSL_GUARDED_BY(mutex_) = false;
  Ticket first_timed_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<CollectiveTime> times_ ABSL_GUARDED_BY(mutex_);
  std::map<const CollectiveCall*, std::unique_ptr<Message>> posted_ ABSL_GUARDED_BY(mutex_);  // Under way.
  std::thread thread_;  // Started with the first Start.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_COLLECTIVES_H_
