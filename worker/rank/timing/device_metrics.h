#ifndef TACC_WORKER_RANK_TIMING_DEVICE_METRICS_H_
#define TACC_WORKER_RANK_TIMING_DEVICE_METRICS_H_

#include <cstdint>
#include <optional>

#include "nlohmann/json.hpp"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// What a rank's events say of its device (docs/contracts.md): fields that the device cannot fill are left out.
class DeviceMetrics {
 public:
  // The device is asked for its memory in the events of the first kFirstSteps steps, then after kSampleSeconds; events
  // between say what it said last.
  static constexpr int64_t kFirstSteps = 3;
  static constexpr double kSampleSeconds = 10;

  // `device` must outlive the object.
  explicit DeviceMetrics(Device* device) : device_(*device) {}

  // As the device says it, or said it last; nothing where it cannot say.
  std::optional<int64_t> MemoryUsedBytes();
  // Adds device_idle_share and device_memory_used_bytes to the event of a step of `seconds`, in `active_seconds` of
  // which the device worked.
  void AddToStep(std::optional<double> active_seconds, double seconds, nlohmann::json* event);

 private:
  Device& device_;
  int64_t num_steps_ = 0;
  double sampled_ = 0;  // when, as SteadySeconds() counts
  std::optional<int64_t> memory_used_bytes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TIMING_DEVICE_METRICS_H_
