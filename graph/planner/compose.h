#ifndef TACC_GRAPH_PLANNER_COMPOSE_H_
#define TACC_GRAPH_PLANNER_COMPOSE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// The forward graph with only the first `keep` of its layers `units`: what read the last layer's values reads those of
// layer keep - 1. Errors: FailedPrecondition when the layers are not a chain of equal ones.
absl::StatusOr<Graph> KeepLayers(const Graph& forward, const std::vector<std::string>& units, size_t keep);

// What a plan needs and takes.
struct Measured {
  MemoryUse memory;         // of the stage that needs most
  StepCost cost;            // of the stage with the most FLOPs
  StageTimes times;         // of the stage that is busy longest
  double wait_seconds = 0;  // see Candidate
  double step_seconds = 0;
  bool composed = false;
  int64_t compiled_layers = 0;    // what it cost
  std::vector<Program> programs;  // of the stages, when it is not composed
};

// By the plan's programs: their memory plans, and their simulated step. Of a step of many micro-batches, three rounds
// are simulated (a round: as many as there are stages), and the third stands for those after it.
absl::StatusOr<Measured> MeasurePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops);

// The same, put together from the same model with two and with three layers in each part of each stage (four and five
// where gradients are summed over shards; five and six with recomputation, and where that is in a pipeline): every
// further layer adds what the last did. Takes time that does not
// grow with the layers. Memory is within 1 % of the whole model's (compose_test) where its buffers leave as few gaps.
// What is too small to gain by it, or has layers that differ or are not cut evenly, is measured whole. Errors: those of
// CompilePlan.
absl::StatusOr<Measured> ComposePlan(const PlanRequest& request, const Plan& plan, const ForwardModel& model,
                                     const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COMPOSE_H_
