#include "worker/rank/device/device_clock.h"

#include <limits>
#include <utility>

#include "graph/ir/status_macros.h"
#include "machine/clock.h"

namespace tacc::worker {

// A mark that is set and waited for lies between two readings of the host's clock; the closest pair counts.
absl::Status DeviceClock::Align(Device& device) {
  constexpr int kTries = 8;
  for (std::unique_ptr<Device::Mark>* mark : {&origin_, &spare_}) {
    if (*mark != nullptr) continue;
    TACC_ASSIGN_OR_RETURN(*mark, device.CreateMark());
  }
  TACC_RETURN_IF_ERROR(device.Synchronize());
  double closest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kTries; ++i) {
    const double before = SteadySeconds();
    TACC_RETURN_IF_ERROR(spare_->Set());
    TACC_RETURN_IF_ERROR(spare_->Wait());
    const double after = SteadySeconds();
    if (after - before >= closest) continue;
    closest = after - before;
    origin_seconds_ = (before + after) / 2;
    std::swap(origin_, spare_);
  }
  return absl::OkStatus();
}

absl::StatusOr<double> DeviceClock::SecondsAt(const Device::Mark& place) const {
  TACC_ASSIGN_OR_RETURN(const double seconds, place.SecondsSince(*origin_));
  return origin_seconds_ + seconds;
}

}  // namespace tacc::worker
