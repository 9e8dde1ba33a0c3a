// The learning rate as a function of the step.
#ifndef TACC_KERNELS_CONTRACT_LR_SCHEDULE_H_
#define TACC_KERNELS_CONTRACT_LR_SCHEDULE_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

enum class LrScheduleType { kCosine, kLinear, kConstant };

struct LrSchedule {
  LrScheduleType type = LrScheduleType::kConstant;
  double learning_rate = 0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 0;
  double min_lr_ratio = 0;  // the floor that cosine and linear decay to, as a part of learning_rate
};

struct LrScheduleKernels {
  // y[] = the learning rate of the update after step[] (i64) updates: linear from 0 over warmup_steps, then constant,
  // or decaying to the floor at max_steps (half a cosine, or a line), and the floor after it. With min_lr_ratio 0 it
  // equals transformers' get_*_schedule_with_warmup.
  void (&LearningRate)(const LrSchedule& schedule, const TensorView& step, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_LR_SCHEDULE_H_
