#ifndef TACC_WORKER_RANK_COLLECTIVES_COLLECTIVES_H_
#define TACC_WORKER_RANK_COLLECTIVES_COLLECTIVES_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kernels/tensor.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {

class DeviceClock;

// One collective, bound: what this rank sends to and takes from whom. Made once per node by BindCollective.
struct CollectiveCall {
  enum class Kind {
    kExchange,       // send[i] goes to members[i], receive[i] is filled by it
    kAllGather,      // send[0] goes to all members, receive[i] is filled by members[i]
    kReduceScatter,  // send[i] goes to members[i]; the sum of what the members sent to this rank goes to receive[0]
    kAllReduce,      // the sum of the members' send[0] goes to receive[0]; both contiguous, the same place or apart
    kSend,           // send[0], contiguous, to members[0] on `channel`
    kReceive,        // receive[0], contiguous, from members[0] on `channel`
  };
  Kind kind = Kind::kExchange;
  std::vector<int> members;  // Ranks, ascending, this one among them.
  int me = 0;                // This rank's index in members.
  uint32_t channel = 0;      // Messages on one channel between two ranks keep their order.
  uint32_t node = 0;         // Its node's index in the graph, for whoever watches.
  // Members run different programs, in which the node has other indices.
  bool across_stages = false;
  // Empty regions (no bytes) move nothing. What goes to this rank itself is a local copy; when both sides are the same
  // memory, none.
  std::vector<Region> send;
  std::vector<Region> receive;
  // Of the elements sent and of the result of a sum. Sums are kept in f32 (f64 for f64, the type itself for integers).
  kernels::DType send_dtype = kernels::DType::kF32;
  kernels::DType receive_dtype = kernels::DType::kF32;
};

struct CollectiveStats {
  int64_t num_calls = 0;
  int64_t bytes_sent = 0;   // Payload, by this rank.
  double busy_seconds = 0;  // In which a collective was running, overlapped with compute or not.
  double wait_seconds = 0;  // In which the caller of Run and Wait was blocked.
};

// When a collective ran, as SteadySeconds() counts.
struct CollectiveTime {
  double begin = 0;
  double end = 0;
  int64_t sent_bytes = 0;  // Payload, by this rank.
};

// Of what was queued on a device.
struct CollectiveProgress {
  uint64_t num_moves = 0;     // Collectives and messages that have begun, and that have ended.
  bool is_under_way = false;  // A collective, no message, has begun and not ended.
};

// Where an executor starts the collectives of its program.
class CollectiveQueue {
 public:
  using Ticket = int64_t;

  virtual ~CollectiveQueue() = default;

  // Before the first Start of `call`, which must stay: takes what memory it needs.
  virtual absl::Status Prepare(const CollectiveCall* call) = 0;
  // After the last Prepare and before the first Start, by all ranks; once. Where the ranks have not been connected, it
  // does, and returns when all are. Unavailable: a rank did not answer in time.
  virtual absl::Status Open() { return absl::OkStatus(); }
  // Where Start and Wait only queue: what is queued from now on is of the program's call number `call`. Not while
  // recording.
  virtual absl::Status EnterCall(uint32_t /*call*/) { return absl::OkStatus(); }
  // Starts `call` on the memory that it names, behind what its device has been given to do.
  virtual absl::StatusOr<Ticket> Start(const CollectiveCall* call) = 0;
  // What the device is given to do from now on comes after the collective. Unavailable names the rank that did not
  // answer.
  virtual absl::Status Wait(Ticket ticket) = 0;
  // The same for the message that `ticket` started, by `call`: it has left or come.
  virtual absl::Status Finish(const CollectiveCall& call, Ticket ticket) = 0;
  // Start and Wait.
  virtual absl::Status Run(const CollectiveCall& call) = 0;
  // Where Start and Wait only queue: the first error of what has been queued since.
  virtual absl::Status Check() { return absl::OkStatus(); }
  // The same: how far the device is with it. On any thread.
  virtual CollectiveProgress Progress() const { return {}; }
  // For traces: times what is started from now on, until TakeTimes; nothing is recorded meanwhile.
  virtual absl::Status StartTiming() = 0;
  // When all of that has been waited for, by the host too: an entry for each Start and Run since, in their order.
  // `clock` is the device's, aligned before StartTiming; a CPU's need not be.
  virtual absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock& clock) = 0;
  // Whether it all is queued on the device and can be recorded (Device::Record) but for messages, which may outlast a
  // recording; else the host takes part.
  virtual bool is_on_device() const = 0;
};

// The collectives of one rank. They run one at a time, in the order of Start, on a thread of their own: the order is
// total, across groups too, so ranks that start the same collectives in the same order never wait for each other in a
// circle. (A Run while nothing else is in flight runs on the calling thread: a hand-over costs more than a small
// message.) Sums are taken in the order of ranks in f32, so results do not depend on time and are the same bits on
// every rank.
//
// A group with as many ranks, two or more, on each of several machines moves in two levels (two_levels.h): so no more
// goes between machines than a ring would send there. Then the ranks of each machine are summed first, in their order,
// the sum is rounded to the type of the summands, and these are summed in the order of machines.
//
// Staging for strided regions and sums: at most kStagingBytes, taken at Create.
//
// A message (kSend, kReceive) is only posted in that order; then it travels beside everything else, and Finish waits
// for it. So ranks that send to each other do not wait in a circle.
//
// All methods are called by one thread. After an error nothing more can be done than to destroy the object.
class Collectives : public CollectiveQueue {
 public:
  static constexpr int64_t kStagingBytes = 8 << 20;

  // Programs can be bound to it before the ranks are connected.
  Collectives(int rank, int world);
  ~Collectives() override;
  Collectives(const Collectives&) = delete;
  Collectives& operator=(const Collectives&) = delete;

  // Before the first call, in a world of more than one. `transport` must outlive the object.
  void Connect(Transport* transport);

  int rank() const { return rank_; }
  int world() const { return world_; }
  // As Transport's.
  int machine_of(int rank) const;

  absl::Status Prepare(const CollectiveCall*) override { return absl::OkStatus(); }
  absl::StatusOr<Ticket> Start(const CollectiveCall* call) override;
  // Returns when it has ended.
  absl::Status Wait(Ticket ticket) override;
  absl::Status Finish(const CollectiveCall& call, Ticket ticket) override;
  absl::Status Run(const CollectiveCall& call) override;
  // Of a message from where it is posted to the end of Finish. No two of the others overlap.
  absl::Status StartTiming() override;
  absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock& clock) override;
  bool is_on_device() const override { return false; }

  // Returns rank r's `values` in [r]: the way ranks agree on small things.
  absl::StatusOr<std::vector<std::vector<uint64_t>>> GatherHost(const std::vector<uint64_t>& values);
  // Returns when every rank is here.
  absl::Status Barrier();

  CollectiveStats stats() const;

 private:
  class Engine;

  void Loop();
  // Where the times of the call that is `ticket` go; null: it is not timed.
  CollectiveTime* TimeOf(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Posts the message of `call` on this thread and counts it as done.
  void Post(const CollectiveCall* call);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !queue_.empty(); }

  const int rank_;
  const int world_;
  std::unique_ptr<Engine> engine_;
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
