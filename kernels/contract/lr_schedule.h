// The learning rate as a function of the step.
#ifndef TACC_KERNELS_CONTRACT_LR_SCHEDULE_H_
#define TACC_KERNELS_CONTRACT_LR_SCHEDULE_H_

#include <math.h>

#include "kernels/tensor.h"

#ifdef __CUDACC__
#define TACC_HOST_DEVICE __host__ __device__
#else
#define TACC_HOST_DEVICE
#endif

namespace tacc::kernels {

enum class LrScheduleType {
  kCosine,
  kLinear,
  kConstant,
  kCosineWithRestarts,
  kPolynomial,
  kInverseSqrt,
  kWarmupStableDecay,
  kTable,
};
// Of the end of kWarmupStableDecay.
enum class LrDecayType { kCosine, kLinear, kOneMinusSqrt };

struct LrSchedule {
  LrScheduleType type = LrScheduleType::kConstant;
  double learning_rate = 0;
  int64_t warmup_steps = 0;
  int64_t max_steps = 0;
  double min_lr_ratio = 0;     // the floor of all that decay, as a part of learning_rate
  double num_cycles = 0.5;     // waves of cosines; restarts: how often they begin
  double power = 1;            // kPolynomial
  int64_t timescale = 10'000;  // kInverseSqrt: steps after which the rate is 1 / sqrt(2), without warm-up
  int64_t decay_steps = 0;     // kWarmupStableDecay: so many before max_steps
  LrDecayType decay_type = LrDecayType::kCosine;
  const double* factors = nullptr;  // kTable: in the device's memory, by step; the last one stays
  int64_t num_factors = 0;
};

// What the schedule makes of learning_rate at a step: the formulas of transformers' get_*_schedule*, with a progress
// that stays at 1 from max_steps on.
TACC_HOST_DEVICE inline double LrFactor(const LrSchedule& s, double step) {
  constexpr double kPi = 3.14159265358979323846;
  const double warmup = static_cast<double>(s.warmup_steps), end = static_cast<double>(s.max_steps);
  const double floor = s.min_lr_ratio, range = 1 - s.min_lr_ratio;
  if (s.type == LrScheduleType::kTable) {
    const int64_t at = static_cast<int64_t>(step), last = s.num_factors - 1;
    return s.factors[at < last ? at : last];
  }
  if (step < warmup)
    return s.type == LrScheduleType::kWarmupStableDecay ? floor + range * (step / warmup) : step / warmup;
  double progress = (step - warmup) / ::fmax(1.0, end - warmup);
  if (progress > 1) progress = 1;
  switch (s.type) {
    case LrScheduleType::kCosine:
      return floor + range * 0.5 * (1 + ::cos(kPi * 2 * s.num_cycles * progress));
    case LrScheduleType::kCosineWithRestarts: {
      const double turns = s.num_cycles * progress;
      return progress == 1 ? floor : floor + range * 0.5 * (1 + ::cos(kPi * (turns - ::floor(turns))));
    }
    case LrScheduleType::kLinear:
      return floor + range * (1 - progress);
    case LrScheduleType::kPolynomial:
      return floor + range * ::pow(1 - progress, s.power);
    case LrScheduleType::kInverseSqrt: {
      const double scale = static_cast<double>(s.timescale);
      return floor + range / ::sqrt((step + scale - warmup) / scale);
    }
    case LrScheduleType::kWarmupStableDecay: {
      const double decay = static_cast<double>(s.decay_steps);
      double done = (step - (end - decay)) / ::fmax(1.0, decay);
      done = done < 0 ? 0 : done > 1 ? 1 : done;
      if (done == 1) return floor;
      const double left = s.decay_type == LrDecayType::kLinear   ? 1 - done
                          : s.decay_type == LrDecayType::kCosine ? 0.5 * (1 + ::cos(kPi * 2 * s.num_cycles * done))
                                                                 : 1 - ::sqrt(done);
      return floor + range * left;
    }
    case LrScheduleType::kConstant:
    case LrScheduleType::kTable:
      break;
  }
  return 1;
}

struct LrScheduleKernels {
  // y[] = the learning rate of the update after step[] (i64) updates: learning_rate times LrFactor.
  void (&LearningRate)(const LrSchedule& schedule, const TensorView& step, const TensorView& y);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_LR_SCHEDULE_H_
