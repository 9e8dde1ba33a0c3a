#include <math.h>

#include "kernels/contract/lr_schedule.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/load.h"

namespace tacc::kernels::cuda {
namespace {

// One thread; the arithmetic of the CPU's LearningRate.
struct LearningRateOfStep {
  LrSchedule schedule;
  const int64_t* step;
  AnyOut y;

  TACC_DEVICE void operator()(int64_t) const { y.Store(0, Rate(static_cast<double>(*step))); }

  TACC_DEVICE double Rate(double at) const {
    const double warmup = static_cast<double>(schedule.warmup_steps);
    if (at < warmup) return schedule.learning_rate * at / warmup;
    if (schedule.type == LrScheduleType::kConstant) return schedule.learning_rate;
    const double decay_steps = ::fmax(1.0, static_cast<double>(schedule.max_steps) - warmup);
    const double progress = ::fmin(1.0, (at - warmup) / decay_steps);
    const double factor =
        schedule.type == LrScheduleType::kLinear ? 1 - progress : 0.5 * (1 + ::cos(3.14159265358979323846 * progress));
    return schedule.learning_rate * (schedule.min_lr_ratio + (1 - schedule.min_lr_ratio) * factor);
  }
};

void LearningRate(const LrSchedule& schedule, const TensorView& step, const TensorView& y) {
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64 && y.size() == 1);
  ForEach(1, LearningRateOfStep{schedule, step.as<int64_t>(), Out(y)});
}

}  // namespace

const LrScheduleKernels kLrSchedule = {
    .LearningRate = LearningRate,
};

}  // namespace tacc::kernels::cuda
