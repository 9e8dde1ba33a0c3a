#ifndef TACC_WORKER_RANK_TIMING_GAP_TRACE_H_
#define TACC_WORKER_RANK_TIMING_GAP_TRACE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "worker/rank/device/device.h"
#include "worker/rank/program/executor.h"
#include "worker/rank/protocol/events.h"

namespace tacc::worker {

// How much of the time that a step's parts take (Executor::busy_seconds) the device works: the rest are gaps between
// its kernels, which marks around a recording cannot see. Now and then a step is traced, and what it shows holds for
// the steps after it. What fails is said once, and then nothing more is traced: a training does not end for it.
class GapTrace {
 public:
  // The first step of a start that is traced, counted from 1: all is recorded and warm. Then those that are kFactor
  // times as late: what a trace costs is soon a small part of everything.
  static constexpr int64_t kFirstStep = 10, kFactor = 10;

  // Both must outlive the object. `device` is asynchronous.
  GapTrace(Device* device, EventWriter* events) : device_(*device), events_(*events) {}

  // Traces nothing: what the device makes at its first trace, memory too, is made before the first step. Nothing is in
  // flight.
  void WarmUp();

  // Whether a step of the start, counted from 1, is to be put between Begin and End.
  bool is_due(int64_t step) const { return step >= next_step_; }

  // Nothing is in flight.
  void Begin();
  // The step, which the executor finished last, is done, and nothing is in flight.
  void End(const Executor& executor);

  // Of `busy_seconds` of a step, those in which the device worked. None: nobody knows.
  std::optional<double> ActiveSeconds(std::optional<double> busy_seconds) const;

 private:
  absl::Status Start();
  absl::Status Stop(const Executor& executor);
  void TakeStatus(const absl::Status& status);

  Device& device_;
  EventWriter& events_;
  std::unique_ptr<Device::Mark> origin_;
  bool is_tracing_ = false;
  double start_seconds_ = 0;  // That the last Begin took.
  int64_t next_step_ = kFirstStep;
  std::optional<double> active_share_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TIMING_GAP_TRACE_H_
