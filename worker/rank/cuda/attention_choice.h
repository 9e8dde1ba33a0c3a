#ifndef TACC_WORKER_RANK_CUDA_ATTENTION_CHOICE_H_
#define TACC_WORKER_RANK_CUDA_ATTENTION_CHOICE_H_

#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/libtorch_attention.h"

namespace tacc::worker {

// How one backend did.
struct AttentionTiming {
  kernels::cuda::AttentionBackend backend = kernels::cuda::AttentionBackend::kTiles;
  double forward_seconds = 0, backward_seconds = 0;
  std::string refused;  // Why it is not used; empty if it may be.
};

struct AttentionChoice {
  // Null: our own kernels (kernels::cuda::Attention).
  std::shared_ptr<const kernels::cuda::LibtorchAttention> libtorch;
  kernels::cuda::AttentionBackend backend = kernels::cuda::AttentionBackend::kTiles;
  std::vector<AttentionTiming> timings;

  // For the plan and logs: "cudnn (forward 0.31 ms, backward 0.80 ms; flash 0.35 ms, 0.91 ms; tiles ...)".
  std::string ToString() const;
};

// The fastest backend, forward and backward together, for attention of these operands (views whose data is not looked
// at; the batch counts as 1): each is run on the current device and stream with random numbers, and one whose results
// are not those of our own kernels is refused. Where LibTorch cannot be asked at all, or a deterministic mode is on
// that a backend does not know, it is refused unrun. Allocates; waits for the device: not in a step. Errors of our own
// kernels are exceptions.
AttentionChoice ChooseAttention(const kernels::TensorView& q, const kernels::TensorView& k,
                                const kernels::AttentionExtras& extras, const kernels::AttentionParameters& parameters);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_ATTENTION_CHOICE_H_
