// The learning rate as a function of the step.
#ifndef TACC_KERNELS_CPU_LR_SCHEDULE_H_
#define TACC_KERNELS_CPU_LR_SCHEDULE_H_

#include "kernels/tensor.h"

namespace tacc::kernels::cpu {

enum class LrScheduleType { kCosine, kLinear, kConstant };

struct LrSchedule {
  LrScheduleType type = LrScheduleType::kConstant;
  double learning_rate = 0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 0;
  double min_lr_ratio = 0;  // the floor that cosine and linear decay to, as a part of learning_rate
};

// The learning rate of the update after `step` updates: linear from 0 over warmup_steps, then constant, or decaying to
// the floor at max_steps (half a cosine, or a line), and the floor after it. With min_lr_ratio 0 it equals
// transformers' get_*_schedule_with_warmup.
double LearningRate(const LrSchedule& schedule, int64_t step);

// y[] = LearningRate(schedule, step[]); step i64.
void LearningRate(const LrSchedule& schedule, const TensorView& step, const TensorView& y);

}  // namespace tacc::kernels::cpu

#endif  // TACC_KERNELS_CPU_LR_SCHEDULE_H_
