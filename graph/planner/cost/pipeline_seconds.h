#ifndef TACC_GRAPH_PLANNER_COST_PIPELINE_SECONDS_H_
#define TACC_GRAPH_PLANNER_COST_PIPELINE_SECONDS_H_

#include <vector>

#include "graph/passes/stages/pipeline_calls.h"

namespace tacc::graph {

// What a stage takes for a micro-batch, all its chunks together: `weight` of gradients of weights, where they have
// passes of their own.
struct PassSeconds {
  double forward = 0, backward = 0, weight = 0;
  double total() const { return forward + backward + weight; }
  void Add(const PassSeconds& o, double times) {
    forward += times * o.forward;
    backward += times * o.backward;
    weight += times * o.weight;
  }
};

// Seconds of a step's passes (PassesOf), each as soon as the one before it on its stage is done and the message of the
// one that it hangs on is there; `message`: of one, beside which stages compute. Of many micro-batches the first two or
// three rounds are run, as many as there are stages each; every further one takes what the last of them does. A shape
// that has no schedule takes what its slowest stage computes. Takes time in proportion to the passes of these rounds.
double PipelineSeconds(const PipelineShape& shape, const std::vector<PassSeconds>& stages, double message);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_PIPELINE_SECONDS_H_
