#include "worker/rank/program/bind_optimizer.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/program/kernel_operands.h"
#include "worker/rank/program/newton_schulz.h"

namespace tacc::worker {
namespace {

using kernels::LrDecayType, kernels::LrScheduleType;

absl::StatusOr<Kernel> Update(const Binding& b) {
  return Kernel([&k = b.kernels.optimizer, update = WeightUpdateOf(b)] { k.Update(update); });
}

// For devices that read the host's memory; others put the factors into their own (KernelTable::PrepareFirst).
absl::StatusOr<Kernel> LrSchedule(const Binding& b) {
  const auto factors = std::make_shared<const std::vector<double>>(b.attr<std::vector<double>>("factors"));
  kernels::LrSchedule schedule = LrScheduleOf(b);
  schedule.factors = factors->data();
  schedule.num_factors = static_cast<int64_t>(factors->size());
  return Kernel([&k = b.kernels.lr_schedule, factors, schedule, step = b.in(0), y = b.out(0)] {
    k.LearningRate(schedule, step, y);
  });
}

absl::StatusOr<Kernel> BindNewtonSchulz(const Binding& b) {
  const std::vector<int64_t> stored = b.attr<std::vector<int64_t>>("stored");
  TACC_ASSIGN_OR_RETURN(NewtonSchulz kernel,
                        NewtonSchulz::Prepare(b.kernels, b.in(0), b.out(0), stored[stored.size() - 2], stored.back(),
                                              b.attr<int64_t>("steps")));
  return Kernel([kernel = std::move(kernel)] { kernel.Run(); });
}

// Of operand `operand`, as its node's `stored` sees it.
kernels::MatrixPart MatrixPartOf(const Binding& b, size_t operand) {
  const std::vector<int64_t> stored = b.attr<std::vector<int64_t>>("stored");
  kernels::MatrixPart part{.logical = b.logical(operand), .bounds = b.in_bounds(operand)};
  for (int d = 0; d < part.bounds.rank(); ++d) part.begin.push_back(b.in_begin(operand, d));
  part.is_factored = stored.size() > 1;
  part.columns = part.is_factored ? stored.back() : 1;
  part.rows = part.is_factored ? stored[stored.size() - 2] : b.logical(operand).Product();
  return part;
}

absl::StatusOr<Kernel> SquareSums(const Binding& b) {
  return Kernel([&k = b.kernels.adafactor, part = MatrixPartOf(b, 0), g = b.in(0), grad_scale = b.in(1),
                 epsilon = b.attr<double>("epsilon"), sums = kernels::SecondMoments{b.out(0), b.out_or_absent(1)}] {
    k.SquareSums(g, part, grad_scale, epsilon, sums);
  });
}

absl::StatusOr<Kernel> AdafactorSquares(const Binding& b) {
  return Kernel([&k = b.kernels.adafactor, part = MatrixPartOf(b, 0), g = b.in(0), grad_scale = b.in(1),
                 moments = kernels::SecondMoments{b.in(2), b.in_or_absent(3)},
                 y = b.out(0)] { k.UpdateSquares(g, part, grad_scale, moments, y); });
}

absl::StatusOr<Kernel> Adafactor(const Binding& b) {
  const kernels::AdafactorParameters parameters{b.attr<double>("clip_threshold"), b.attr<double>("weight_decay")};
  return Kernel([&k = b.kernels.adafactor, parameters, part = MatrixPartOf(b, 1), w = b.in(0), g = b.in(1),
                 scalars = kernels::AdafactorScalars{b.in(2), b.in(3), b.in(4), b.in(5)},
                 moments = kernels::SecondMoments{b.in(6), b.in_or_absent(7)}, new_w = b.out(0),
                 copy = b.out_or_absent(1)] { k.Update(w, g, part, moments, scalars, parameters, new_w, copy); });
}

}  // namespace

kernels::LrSchedule LrScheduleOf(const Binding& b) {
  static const std::map<absl::string_view, LrScheduleType> types = {
      {"constant", LrScheduleType::kConstant},
      {"cosine", LrScheduleType::kCosine},
      {"cosine_with_restarts", LrScheduleType::kCosineWithRestarts},
      {"inverse_sqrt", LrScheduleType::kInverseSqrt},
      {"linear", LrScheduleType::kLinear},
      {"polynomial", LrScheduleType::kPolynomial},
      {"table", LrScheduleType::kTable},
      {"warmup_stable_decay", LrScheduleType::kWarmupStableDecay},
  };
  static const std::map<absl::string_view, LrDecayType> decays = {
      {"1-sqrt", LrDecayType::kOneMinusSqrt}, {"cosine", LrDecayType::kCosine}, {"linear", LrDecayType::kLinear}};
  const kernels::LrSchedule defaults;
  return {.type = types.at(b.attr<std::string>("type")),
          .learning_rate = b.attr<double>("learning_rate"),
          .warmup_steps = b.attr<int64_t>("warmup_steps"),
          .max_steps = b.attr<int64_t>("max_steps"),
          .min_lr_ratio = b.attr<double>("min_lr_ratio"),
          .num_cycles = b.attr<double>("num_cycles", defaults.num_cycles),
          .power = b.attr<double>("power", defaults.power),
          .timescale = b.attr<int64_t>("timescale", defaults.timescale),
          .decay_steps = b.attr<int64_t>("decay_steps"),
          .decay_type = decays.at(b.attr<std::string>("decay_type", "cosine"))};
}

const std::map<std::string, PrepareKernel>& OptimizerKernels() {
  static const std::map<std::string, PrepareKernel> table = {
      {"adafactor", Adafactor},
      {"adafactor_squares", AdafactorSquares},
      {"adam", Update},
      {"adamw", Update},
      {"lion", Update},
      {"lr_schedule", LrSchedule},
      {"moving_average", Update},
      {"newton_schulz", BindNewtonSchulz},
      {"sgd", Update},
      {"square_sums", SquareSums},
  };
  return table;
}

}  // namespace tacc::worker
