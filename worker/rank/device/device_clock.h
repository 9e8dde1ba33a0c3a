#ifndef TACC_WORKER_RANK_DEVICE_DEVICE_CLOCK_H_
#define TACC_WORKER_RANK_DEVICE_DEVICE_CLOCK_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// An asynchronous device's time as the host's clock counts, SteadySeconds().
class DeviceClock {
 public:
  // Finds a moment as both have it. Waits for the device.
  absl::Status Align(Device& device);
  // When the device was at a place that was set since, in any of its queues; it has been reached (Device::Mark).
  absl::StatusOr<double> SecondsAt(const Device::Mark& place) const;

 private:
  std::unique_ptr<Device::Mark> origin_, spare_;
  double origin_seconds_ = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_DEVICE_CLOCK_H_
