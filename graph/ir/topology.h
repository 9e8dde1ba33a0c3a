#ifndef TACC_GRAPH_IR_TOPOLOGY_H_
#define TACC_GRAPH_IR_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/sharding.h"

namespace tacc::graph {

// "pp, dp, fsdp, ep, cp, tp"
std::string JobAxisNames();

// Returns the mesh, whose axes are of the table in axis.h, with its axes in the order of `topology` (names of a job's
// axes), or in the table's where that is empty. Axes of size 1 need not be named. Errors: InvalidArgument for an
// unknown name, one given twice, and an axis left out, with what is legal.
absl::StatusOr<Mesh> InTopology(Mesh mesh, const std::vector<std::string>& topology);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TOPOLOGY_H_
