// How the backends of attention are timed on a GPU.
#ifndef TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_BENCH_H_
#define TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_BENCH_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "kernels/cuda/attention.h"
#include "worker/rank/cuda/memory/device_workspace.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// Makes one of LibTorch's backends, or ours on tensor cores, for a dtype and head dim. Throws where it does not work.
using MakeAttention = std::function<std::shared_ptr<const kernels::cuda::FastAttention>(
    kernels::cuda::AttentionBackend backend, kernels::DType dtype, int64_t head_dim)>;

// What measuring attention asks of a device. Errors are exceptions.
class AttentionBench {
 public:
  virtual ~AttentionBench() = default;

  virtual std::shared_ptr<const kernels::cuda::FastAttention> Make(kernels::cuda::AttentionBackend backend,
                                                                   kernels::DType dtype, int64_t head_dim) = 0;
  // Queues `work` where steps run, with the memory that they have for scratch; returns when it is done.
  virtual void Do(const std::function<void()>& work) = 0;
  // The shortest time in seconds that `call` takes the device when `num_calls` follow each other, without what the host
  // takes to queue them. Does it a few times more.
  virtual double Seconds(int num_calls, const std::function<void()>& call) = 0;
  // Queues `work` elsewhere, with memory of the system, which then stays with what it has made; returns when it is
  // done.
  virtual void Beside(const std::function<void()>& work) = 0;
  // The most bytes of the plan's workspace that were used at a time since this was asked last.
  virtual int64_t TakePeakBytes() = 0;
  // Of what one of these has thrown: as WhyThrown of recorded_calls.h.
  virtual std::string WhyThrown(const std::exception& error) = 0;
};

// Of a rank: as its steps run, calls are recorded in the device's queue, with scratch from the planned workspace.
class RecordedAttentionBench : public AttentionBench {
 public:
  struct Options {
    Device* device = nullptr;              // Its queue is the thread's current stream.
    DeviceWorkspace* workspace = nullptr;  // Of that queue.
    MakeAttention make;
    std::function<void(const std::function<void()>& work)> beside;
  };
  explicit RecordedAttentionBench(Options options);

  std::shared_ptr<const kernels::cuda::FastAttention> Make(kernels::cuda::AttentionBackend backend,
                                                           kernels::DType dtype, int64_t head_dim) override;
  void Do(const std::function<void()>& work) override;
  double Seconds(int num_calls, const std::function<void()>& call) override;
  void Beside(const std::function<void()>& work) override { options_.beside(work); }
  int64_t TakePeakBytes() override;
  std::string WhyThrown(const std::exception& error) override;

 private:
  const Options options_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_BENCH_H_
