#include "worker/rank/cuda/tuning/attention_on_gpu.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>

#include "kernels/cuda/attention_tensor.h"
#include "kernels/cuda/launch/stream.h"
#include "kernels/cuda/libtorch_attention.h"
#include "worker/rank/cuda/device/timer.h"
#include "worker/rank/cuda/tuning/recorded_calls.h"

namespace tacc::worker {

std::shared_ptr<const kernels::cuda::FastAttention> MakeAttentionOnGpu(kernels::cuda::AttentionBackend backend,
                                                                       kernels::DType dtype, int64_t head_dim) {
  if (backend == kernels::cuda::AttentionBackend::kTensor)
    return std::make_shared<const kernels::cuda::TensorAttention>();
  return std::make_shared<const kernels::cuda::LibtorchAttention>(backend, dtype, head_dim);
}

void DoOnPoolStream(const std::function<void()>& work) {
  const c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStreamGuard guard(stream);
  const kernels::cuda::StreamScope scope(stream.stream());
  work();
  C10_CUDA_CHECK(cudaStreamSynchronize(stream.stream()));
}

void StreamAttentionBench::Do(const std::function<void()>& work) {
  work();
  C10_CUDA_CHECK(cudaStreamSynchronize(kernels::cuda::CurrentStream()));
}

double StreamAttentionBench::Seconds(int num_calls, const std::function<void()>& call) {
  constexpr int kRuns = 3;
  const auto calls = [&] {
    for (int i = 0; i < num_calls; ++i) call();
  };
  return BestSeconds(kRuns, calls) / num_calls;
}

std::string StreamAttentionBench::WhyThrown(const std::exception& error) {
  (void)cudaGetLastError();
  return FirstLine(error);
}

}  // namespace tacc::worker
