#ifndef TACC_GRAPH_PLANNER_PREDICTION_RANGE_H_
#define TACC_GRAPH_PLANNER_PREDICTION_RANGE_H_

#include "graph/planner/cost/cluster.h"

namespace tacc::graph {

// How far from a prediction what it foretells has been found, as factors of the prediction.
struct PredictionRange {
  double low = 1, high = 1;
};

// Seconds of a step on GPUs: measured over predicted. From the 5 % to the 95 % quantile, so nine of ten rows, of
// bench/data's step times (A100 and H100, Megatron-LM's and NeMo's stacks), each predicted by constants fitted on other
// models of its table; the four tables count alike. The predictions are the estimate's; no run of tacc is among the
// rows. `build/published bench/data` prints the quantiles.
inline constexpr PredictionRange kGpuStepRange = {0.938, 1.111};

// The same of CPUs, where tacc itself was measured: of 45 runs, three rounds of 15 layouts of one model, each simulated
// with what a probe found just before. `bench/predicted.py --rounds 3` prints the quantiles (bench/results.md).
inline constexpr PredictionRange kCpuStepRange = {0.893, 1.316};

// Bytes of a rank by its programs over those of an estimate: 9 of 10 of the 504 layouts of 36 jobs of
// bench/search/agreement.
inline constexpr PredictionRange kEstimatedBytesRange = {0.97, 1.07};

// Bytes of a whole program over those put together from parts of the model (Candidate::composed): of the same
// layouts, with `--programs whole` and without.
inline constexpr PredictionRange kComposedBytesRange = {0.98, 1.02};

PredictionRange StepRange(const Machine& machine);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_PREDICTION_RANGE_H_
