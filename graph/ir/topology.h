#ifndef TACC_GRAPH_IR_TOPOLOGY_H_
#define TACC_GRAPH_IR_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/sharding.h"

namespace tacc::graph {

// "pp, dp, fsdp, ep, cp, tp"
std::string JobAxisNames();

// The mesh, whose axes are of the table in axis.h, with them in the order of `topology` (names of a job's axes); empty:
// as in the table. Axes of size 1 need not be named. Errors: InvalidArgument for a name that is none, or given twice,
// and for an axis left out, with what is legal.
absl::StatusOr<Mesh> InTopology(Mesh mesh, const std::vector<std::string>& topology);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TOPOLOGY_H_
