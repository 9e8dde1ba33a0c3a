#include "worker/rank/cuda/attention_bench.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
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

RecordedAttentionBench::RecordedAttentionBench(Options options) : options_(std::move(options)) {}

std::shared_ptr<const kernels::cuda::FastAttention> RecordedAttentionBench::Make(
    kernels::cuda::AttentionBackend backend, kernels::DType dtype, int64_t head_dim) {
  return options_.make(backend, dtype, head_dim);
}

void RecordedAttentionBench::Do(const std::function<void()>& work) {
  work();
  ThrowUnlessOk(options_.device->Synchronize());
}

double RecordedAttentionBench::Seconds(int num_calls, const std::function<void()>& call) {
  Device& device = *options_.device;
  Do(call);  // What is loaded or compiled for the first call may not be recorded.
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

int64_t RecordedAttentionBench::TakePeakBytes() {
  const int64_t peak = options_.workspace->stats().heap.peak_used_bytes;
  options_.workspace->ResetPeak();
  return peak;
}

}  // namespace tacc::worker
