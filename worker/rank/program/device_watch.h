#ifndef TACC_WORKER_RANK_PROGRAM_DEVICE_WATCH_H_
#define TACC_WORKER_RANK_PROGRAM_DEVICE_WATCH_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "graph/ir/graph.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// Finds out that an asynchronous device has stopped in the midst of its work: a kernel that does not end, or a device
// that is lost, reports nothing, and the host sits in a wait for it.
//
// An executor tells what it queues in pieces. Behind each the device publishes the piece's number, so that a thread
// sees which one it is in. When a piece does not end for the patience, and none of the collectives on the device
// begins, ends or is under way meanwhile (those have a time-out of their own), the device has stopped.
class DeviceWatch {
 public:
  struct Options {
    // A piece never needs more, unless it is a good part of a step; then kStepsOfPatience times the median of the last
    // steps counts.
    absl::Duration patience;
    // Of the device's collectives, on any thread; null: there are none on the device.
    std::function<CollectiveProgress()> collectives;
    // Called once, on the thread of the watch, which looks no more. The error says what the device was doing.
    std::function<void(const absl::Status&)> on_stop;
  };
  static constexpr int kStepsOfPatience = 4;

  // What the device is given to do between two words.
  struct Piece {
    uint32_t call = 0;  // Of the program's calls.
    const graph::Graph* graph = nullptr;
    int first_node = 0, last_node = 0;
    // For the host or for messages of other ranks, and so as long as those take.
    bool waits = false;
  };

  // `device` and the graphs of pieces must outlive the object, the device's queue must be empty when it ends.
  static absl::StatusOr<std::unique_ptr<DeviceWatch>> Create(Device* device, Options options);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // What is queued from now on is of this step, counted from 1. Before the first it is the warm-up.
  void EnterStep(int64_t step);
  // The piece has been queued since the last call. Not while recording.
  void Queued(const Piece& piece);

 private:
  struct Numbered {
    uint32_t number = 0;  // Wraps.
    int64_t step = 0;
    Piece piece;
  };

  DeviceWatch(Device* device, Options options, std::unique_ptr<Arena> memory);
  void Loop();
  // Not Ok: the device has stopped.
  absl::Status Look(absl::Time now);
  absl::Duration Patience() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Device& device_;
  const Options options_;
  const std::unique_ptr<Arena> memory_;
  uint32_t* const word_;  // In it: the number of the piece that ended last.

  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t step_ ABSL_GUARDED_BY(mutex_) = 0;
  std::deque<Numbered> under_way_ ABSL_GUARDED_BY(mutex_);  // As seen last; the first is the one the device is in.
  std::optional<Numbered> ended_last_ ABSL_GUARDED_BY(mutex_);
  absl::Time still_since_ ABSL_GUARDED_BY(mutex_);
  absl::Time step_since_ ABSL_GUARDED_BY(mutex_);
  std::deque<absl::Duration> steps_ ABSL_GUARDED_BY(mutex_);  // The last ones.

  uint32_t num_queued_ = 0;            // Of Queued.
  uint64_t num_collective_moves_ = 0;  // Of Look.

  std::thread thread_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_DEVICE_WATCH_H_
