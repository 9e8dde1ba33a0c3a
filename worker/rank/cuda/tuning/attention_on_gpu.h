#ifndef TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_ON_GPU_H_
#define TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_ON_GPU_H_

#include <functional>

#include "worker/rank/cuda/tuning/attention_bench.h"

namespace tacc::worker {

// As MakeAttention, on the current GPU.
std::shared_ptr<const kernels::cuda::FastAttention> MakeAttentionOnGpu(kernels::cuda::AttentionBackend backend,
                                                                       kernels::DType dtype, int64_t head_dim);

// Does `work` on a stream of LibTorch's pool, which is LibTorch's and kernels/cuda's current one meanwhile, and waits
// for it.
void DoOnPoolStream(const std::function<void()>& work);

// Where there is no plan: on the current stream, with scratch from whatever allocator LibTorch has, timed between
// events. An allocator that asks the system each time is measured too.
class StreamAttentionBench : public AttentionBench {
 public:
  std::shared_ptr<const kernels::cuda::FastAttention> Make(kernels::cuda::AttentionBackend backend,
                                                           kernels::DType dtype, int64_t head_dim) override {
    return MakeAttentionOnGpu(backend, dtype, head_dim);
  }
  void Do(const std::function<void()>& work) override;
  double Seconds(int num_calls, const std::function<void()>& call) override;
  void Beside(const std::function<void()>& work) override { Do(work); }
  int64_t TakePeakBytes() override { return 0; }
  std::string WhyThrown(const std::exception& error) override;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_ON_GPU_H_
