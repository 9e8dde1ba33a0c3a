#include "graph/planner/prediction_range.h"

namespace tacc::graph {

PredictionRange StepRange(const Machine& machine) { return machine.shares_cores ? kCpuStepRange : kGpuStepRange; }

}  // namespace tacc::graph
