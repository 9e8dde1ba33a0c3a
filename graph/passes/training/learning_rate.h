#ifndef TACC_GRAPH_PASSES_TRAINING_LEARNING_RATE_H_
#define TACC_GRAPH_PASSES_TRAINING_LEARNING_RATE_H_

#include "graph/ops/builder.h"
#include "graph/passes/training/build_training.h"

namespace tacc::graph {

// What the schedule of `options` makes of the peak after `step` (i64) updates, an f32 scalar.
ValueId ScheduledRate(const TrainingOptions& options, ValueId step, double peak, Builder& b);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_LEARNING_RATE_H_
