#include "graph/passes/training/learning_rate.h"

#include <string>
#include <utility>

namespace tacc::graph {

ValueId ScheduledRate(const TrainingOptions& options, ValueId step, double peak, Builder& b) {
  const LrScheduleOptions& s = options.lr_schedule;
  const std::string& type = options.lr_scheduler_type;
  Attrs attrs = {{"type", type},
                 {"learning_rate", peak},
                 {"warmup_steps", options.warmup_steps},
                 {"max_steps", options.max_steps},
                 {"min_lr_ratio", options.min_lr_ratio}};
  if (s.num_cycles.has_value()) attrs["num_cycles"] = *s.num_cycles;
  if (type == "cosine_with_restarts") attrs["num_cycles"] = s.num_cycles.value_or(1);
  if (type == "polynomial") attrs["power"] = s.power;
  if (type == "inverse_sqrt")
    attrs["timescale"] = s.timescale.value_or(options.warmup_steps > 0 ? options.warmup_steps : 10'000);
  if (type == "warmup_stable_decay") {
    attrs["decay_steps"] = s.num_decay_steps;
    attrs["decay_type"] = s.decay_type;
  }
  if (type == "table") attrs["factors"] = s.factors;
  return b.Add("lr_schedule", {step}, std::move(attrs));
}

}  // namespace tacc::graph
