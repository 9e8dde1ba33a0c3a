#include "kernels/contract/lr_schedule.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/load.h"

namespace tacc::kernels::cuda {
namespace {

// One thread.
struct LearningRateOfStep {
  LrSchedule schedule;
  const int64_t* step;
  AnyOut y;

  TACC_DEVICE void operator()(int64_t) const {
    y.Store(0, schedule.learning_rate * LrFactor(schedule, static_cast<double>(*step)));
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
