#include "worker/rank/cuda/tuning/recorded_calls.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <stdexcept>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {
namespace {

constexpr int kRuns = 3;

void ThrowUnlessOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  ThrowUnlessOk(value.status());
  return *std::move(value);
}

}  // namespace

void DoOn(Device& device, const std::function<void()>& work) {
  work();
  ThrowUnlessOk(device.Synchronize());
}

double RecordedSeconds(Device& device, int num_calls, const std::function<void()>& call) {
  DoOn(device, call);  // What is loaded or compiled for the first call may not be recorded.
  const auto record = [&]() -> absl::Status {
    try {
      for (int i = 0; i < num_calls; ++i) call();
    } catch (const std::exception& exception) {
      return device.StatusOf(exception);
    }
    return absl::OkStatus();
  };
  const std::unique_ptr<Device::Recording> recording = ValueOrThrow(device.Record(record));
  const std::unique_ptr<Device::Mark> begin = ValueOrThrow(device.CreateMark());
  const std::unique_ptr<Device::Mark> end = ValueOrThrow(device.CreateMark());
  ThrowUnlessOk(recording->Replay());
  double least = std::numeric_limits<double>::infinity();
  for (int run = 0; run < kRuns; ++run) {
    ThrowUnlessOk(begin->Set());
    ThrowUnlessOk(recording->Replay());
    ThrowUnlessOk(end->Set());
    ThrowUnlessOk(end->Wait());
    least = std::min(least, ValueOrThrow(end->SecondsSince(*begin)));
  }
  return least / num_calls;
}

std::string FirstLine(const std::exception& error) {
  const std::string what = error.what();
  return what.substr(0, what.find('\n'));
}

std::string WhyThrown(const Device& device, const std::exception& error) {
  (void)device.StatusOf(error);
  return FirstLine(error);
}

}  // namespace tacc::worker
