#include "worker/rank/cuda/tuning/attention_bench.h"

#include <utility>

#include "worker/rank/cuda/tuning/recorded_calls.h"

namespace tacc::worker {

RecordedAttentionBench::RecordedAttentionBench(Options options) : options_(std::move(options)) {}

std::shared_ptr<const kernels::cuda::FastAttention> RecordedAttentionBench::Make(
    kernels::cuda::AttentionBackend backend, kernels::DType dtype, int64_t head_dim) {
  return options_.make(backend, dtype, head_dim);
}

void RecordedAttentionBench::Do(const std::function<void()>& work) { DoOn(*options_.device, work); }

double RecordedAttentionBench::Seconds(int num_calls, const std::function<void()>& call) {
  return RecordedSeconds(*options_.device, num_calls, call);
}

std::string RecordedAttentionBench::WhyThrown(const std::exception& error) {
  return worker::WhyThrown(*options_.device, error);
}

int64_t RecordedAttentionBench::TakePeakBytes() {
  const int64_t peak = options_.workspace->stats().heap.peak_used_bytes;
  options_.workspace->ResetPeak();
  return peak;
}

}  // namespace tacc::worker
