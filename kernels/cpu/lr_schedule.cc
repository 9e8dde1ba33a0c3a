#include "kernels/contract/lr_schedule.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

double LearningRate(const LrSchedule& schedule, int64_t step) {
  if (step < schedule.warmup_steps) {
    return schedule.learning_rate * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  }
  if (schedule.type == LrScheduleType::kConstant) return schedule.learning_rate;
  const double decay_steps = static_cast<double>(std::max<int64_t>(1, schedule.max_steps - schedule.warmup_steps));
  const double progress = std::min(1.0, static_cast<double>(step - schedule.warmup_steps) / decay_steps);
  const double factor =
      schedule.type == LrScheduleType::kLinear ? 1 - progress : 0.5 * (1 + std::cos(3.14159265358979323846 * progress));
  return schedule.learning_rate * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * factor);
}

void LearningRate(const LrSchedule& schedule, const TensorView& step, const TensorView& y) {
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64);
  WriteScalar(LearningRate(schedule, *step.as<int64_t>()), y);
}

}  // namespace

const LrScheduleKernels kLrSchedule = {
    .LearningRate = LearningRate,
};

}  // namespace tacc::kernels::cpu
