// Which backend computes attention of a shape.
#ifndef TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_PICKER_H_
#define TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_PICKER_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attention.h"
#include "worker/rank/cuda/tuning/attention_bench.h"
#include "worker/rank/device/measured_attention.h"

namespace tacc::worker {

struct AttentionMeasurement {
  std::vector<AttentionTiming> timings;
  // Those that are not refused, but for our own kernels on plain cores ("tiles").
  std::map<std::string, std::shared_ptr<const kernels::cuda::FastAttention>> backends;
};

// How fast each backend is at attention of these operands, measured with random numbers: one sequence, or as many as
// give kMeasuredHeads heads, of at most kMeasuredSequence positions, in the natural order; heads of one tensor where
// the operands are (with a pitch). Refused are: backends that do not take the operands; cuDNN where LibTorch must be
// deterministic; and, as failed, those that throw, whose results are not those of our own kernels on plain cores, or
// that find no room in the plan's workspace for their scratch, of the whole operands. Where q has memory that is tried,
// there: what lies in q and k is lost, with a pitch the rest of their tensor too.
//
// Takes some hundred MB from the system beside, and gives them back; waits for the device: not in a step. Does not
// throw: where something fails, the texts say it.
inline constexpr int64_t kMeasuredSequence = 2048, kMeasuredHeads = 16;
AttentionMeasurement MeasureAttention(AttentionBench& bench, const kernels::TensorView& q, const kernels::TensorView& k,
                                      const kernels::AttentionExtras& extras,
                                      const kernels::AttentionParameters& parameters);

// Measures once for all calls with the same dims, dtype, mask and scale, in one tensor or not, and computes them by
// what is chosen later.
class AttentionPicker {
 public:
  // `bench` must outlive the object.
  explicit AttentionPicker(AttentionBench* bench) : bench_(*bench) {}

  // To be called when Take has been. Never null. As MeasureAttention: before q and k have values.
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
  AttentionBench& bench_;
  std::map<std::string, Shape> shapes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TUNING_ATTENTION_PICKER_H_
