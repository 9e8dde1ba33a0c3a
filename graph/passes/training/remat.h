#ifndef TACC_GRAPH_PASSES_TRAINING_REMAT_H_
#define TACC_GRAPH_PASSES_TRAINING_REMAT_H_

#include <string>
#include <vector>

#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

struct RematOptions {
  // Module paths (decoder layers) whose activations are not kept for the backward. Empty: all are kept.
  std::vector<std::string> units;
};

// Which nodes of a training graph the step's counters (loss, target tokens) are computed from: its forward.
std::vector<char> ForwardNodes(const Program& program, const Graph& graph);

// Activation recomputation ("gradient checkpointing"). Of a unit's forward, the backward keeps only what enters the
// unit and what leaves it for other units; what else it reads is computed again right before its first use there, by
// clones of the forward's nodes with recompute=1. Leaves (inputs, states) are not cloned, and a clone of a dropout has
// its key, so it draws the same mask.
//
// The forward is what the counters of the step (loss, target tokens) are computed from. Must come after autodiff and
// before partition: the clones then gather weights and activations where they need them, as any node does, and share
// the gathers of their unit's backward.
//
// Returns whether anything changed.
bool Rematerialize(Program& program, const OpTable&, const RematOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_REMAT_H_
