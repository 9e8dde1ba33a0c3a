#ifndef TACC_WORKER_RANK_CUDA_ATTENTION_PICKER_H_
#define TACC_WORKER_RANK_CUDA_ATTENTION_PICKER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/libtorch_attention.h"
#include "worker/rank/measured_attention.h"

namespace tacc::worker {

struct AttentionMeasurement {
  std::vector<AttentionTiming> timings;
  // Those that are not refused, but for our own kernels on plain cores ("tiles").
  std::map<std::string, std::shared_ptr<const kernels::cuda::FastAttention>> backends;
};

// How fast each backend is at attention of these operands (views whose data is not looked at), measured on the current
// device with random numbers: one sequence of at most kMeasuredSequence positions and about kMeasuredHeads heads, in
// the natural order. Backends whose results are not those of our own kernels on plain cores are refused, as is cuDNN
// where LibTorch must be deterministic; and unrun those that do not take the operands.
//
// Takes some hundred MB from the system, on a stream of its own, and gives them back; waits for the device: not in a
// step. Does not throw: where something fails, all but plain cores are refused, and the texts say it.
inline constexpr int64_t kMeasuredSequence = 2048, kMeasuredHeads = 16;
AttentionMeasurement MeasureAttention(const kernels::TensorView& q, const kernels::TensorView& k,
                                      const kernels::AttentionExtras& extras,
                                      const kernels::AttentionParameters& parameters);

// Measures once for all calls with the same dims, dtype, mask and scale, and computes them by what is chosen later.
class AttentionPicker {
 public:
  // To be called when Take has been. Never null.
  std::shared_ptr<const kernels::cuda::FastAttention> Pick(const kernels::TensorView& q, const kernels::TensorView& k,
                                                           const kernels::AttentionExtras& extras,
                                                           const kernels::AttentionParameters& parameters);
  // What Pick has measured, by shape.
  std::vector<AttentionChoice> Measured() const;
  // Who computes each shape, of the backends that were not refused; others than Measured's are passed over. Once.
  void Take(const std::vector<AttentionChoice>& choices);

 private:
  class Chosen;
  struct Shape {
    AttentionMeasurement measurement;
    std::shared_ptr<Chosen> chosen;
  };
  std::map<std::string, Shape> shapes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_ATTENTION_PICKER_H_
