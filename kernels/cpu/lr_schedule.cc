#include "kernels/contract/lr_schedule.h"

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

void LearningRate(const LrSchedule& schedule, const TensorView& step, const TensorView& y) {
  TACC_KERNEL_CHECK(step.size() == 1 && step.dtype == DType::kI64);
  WriteScalar(schedule.learning_rate * LrFactor(schedule, static_cast<double>(*step.as<int64_t>())), y);
}

}  // namespace

const LrScheduleKernels kLrSchedule = {
    .LearningRate = LearningRate,
};

}  // namespace tacc::kernels::cpu
