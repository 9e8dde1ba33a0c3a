#ifndef TACC_WORKER_RANK_CUDA_ATTENTION_CHOICE_H_
#define TACC_WORKER_RANK_CUDA_ATTENTION_CHOICE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
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
  // Null: our own kernels on plain cores.
  std::shared_ptr<const kernels::cuda::FastAttention> fast;
  kernels::cuda::AttentionBackend backend = kernels::cuda::AttentionBackend::kTiles;
  std::vector<AttentionTiming> timings;

  // For the plan and logs: "cudnn (forward 0.31 ms, backward 0.80 ms; flash 0.35 ms, 0.91 ms; tensor ...)".
  std::string ToString() const;
};

// The fastest backend, forward and backward together, for attention of these operands (views whose data is not looked
// at), measured on the current device with random numbers: one sequence of at most kChoiceSequence positions and about
// kChoiceHeads heads, in the natural order. Backends whose results are not those of our own kernels on plain cores are
// refused; and unrun those that do not take the operands. Where LibTorch must be deterministic the choice does not
// depend on times: flash attention if that works, else our own on tensor cores if they do.
//
// Takes some hundred MB from the system, on a stream of its own, and gives them back; waits for the device: not in a
// step. Does not throw: where something fails the text says it, and our own kernels on plain cores are chosen.
inline constexpr int64_t kChoiceSequence = 2048, kChoiceHeads = 16;
AttentionChoice ChooseAttention(const kernels::TensorView& q, const kernels::TensorView& k,
                                const kernels::AttentionExtras& extras, const kernels::AttentionParameters& parameters);

// Chooses once for all calls with the same dims, dtype, mask and scale.
class AttentionPicker {
 public:
  // `note` is told each choice, a line.
  explicit AttentionPicker(std::function<void(const std::string& line)> note) : note_(std::move(note)) {}

  // Null: our own kernels on plain cores.
  std::shared_ptr<const kernels::cuda::FastAttention> Pick(const kernels::TensorView& q, const kernels::TensorView& k,
                                                           const kernels::AttentionExtras& extras,
                                                           const kernels::AttentionParameters& parameters);

 private:
  const std::function<void(const std::string& line)> note_;
  std::map<std::string, std::shared_ptr<const kernels::cuda::FastAttention>> choices_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_ATTENTION_CHOICE_H_
