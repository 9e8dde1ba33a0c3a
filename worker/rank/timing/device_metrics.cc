#include "worker/rank/timing/device_metrics.h"

#include <algorithm>

#include "machine/clock.h"

namespace tacc::worker {

std::optional<int64_t> DeviceMetrics::MemoryUsedBytes() {
  const double now = SteadySeconds();
  if (num_steps_ <= kFirstSteps || now - sampled_ >= kSampleSeconds) {
    memory_used_bytes_ = device_.MemoryUsedBytes();
    sampled_ = now;
  }
  return memory_used_bytes_;
}

void DeviceMetrics::AddToStep(std::optional<double> active_seconds, double seconds, nlohmann::json* event) {
  ++num_steps_;
  if (const std::optional<int64_t> bytes = MemoryUsedBytes(); bytes.has_value())
    (*event)["device_memory_used_bytes"] = *bytes;
  if (active_seconds.has_value() && seconds > 0)
    (*event)["device_idle_share"] = std::clamp(1 - *active_seconds / seconds, 0.0, 1.0);
}

}  // namespace tacc::worker
