#ifndef TACC_GRAPH_PASSES_MEMORY_SCHEDULE_H_
#define TACC_GRAPH_PASSES_MEMORY_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"

namespace tacc::graph {

struct ScheduleOptions {
  // Module paths whose weights are gathered and freed together (decoder layers); all other modules form one more unit.
  std::vector<std::string> units;
  // The last N units keep the weights that their forward gathered until their backward, within a graph.
  int64_t kept_units = 0;
  // How many units ahead a gather starts; 0: where it is first used, and the rank waits for it.
  int prefetch_units = 1;
};

// Orders a partitioned program, and returns true.
// - A weight in the form it is used in (cast, gathered from a state) is freed when the line leaves its unit and made
//   again (recompute=1, 2, ...) when a later run of that unit, the backward, needs it: so no more than the units in
//   flight are held so at once. Units that keep their weights are gathered once a graph.
// - Gathers start `prefetch_units` runs of units before their first use (async=true) and are waited for there, so that
//   they overlap with compute. Those that start together follow all casts of what they gather.
// - Reductions of gradients are asynchronous as well, unless prefetch_units is 0: they are waited for one run of a unit
//   later.
//
// Must come after partition and the simplifications (moving earlier would change what propagation sees), before memory
// planning.
bool Schedule(Program& program, const OpTable& ops, const ScheduleOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_MEMORY_SCHEDULE_H_
