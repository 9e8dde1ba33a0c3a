// The learning rate of kernels/cpu/lr_schedule.h on the GPU: the same function and contract, on device memory.
#ifndef TACC_KERNELS_CUDA_LR_SCHEDULE_H_
#define TACC_KERNELS_CUDA_LR_SCHEDULE_H_

#include "kernels/cpu/lr_schedule.h"
#include "kernels/tensor.h"

namespace tacc::kernels::cuda {

using cpu::LrSchedule;
using cpu::LrScheduleType;

void LearningRate(const LrSchedule& schedule, const TensorView& step, const TensorView& y);

}  // namespace tacc::kernels::cuda

#endif  // TACC_KERNELS_CUDA_LR_SCHEDULE_H_
