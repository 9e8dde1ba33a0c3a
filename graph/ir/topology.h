#ifndef TACC_GRAPH_IR_TOPOLOGY_H_
#define TACC_GRAPH_IR_TOPOLOGY_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/sharding.h"

namespace tacc::graph {

// The axes that a job names, in the order in which they lie on machines unless it says otherwise: from between nodes to
// inside a node. On a mesh `cp` may be cut into cp and sp, `tp` into tp and tpq.
inline constexpr const char* kTopology[] = {"pp", "dp", "fsdp", "ep", "cp", "tp"};

// Index in kTopology of the axis that a mesh's axis is, or is a part of; -1: none.
int TopologyIndex(const std::string& name);

// The mesh with its axes in the order of `topology` (names of kTopology); empty: as kTopology. Axes of size 1 need not
// be named. Errors: InvalidArgument for a name that is none, or given twice, and for an axis left out, with what is
// legal.
absl::StatusOr<Mesh> InTopology(Mesh mesh, const std::vector<std::string>& topology);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_TOPOLOGY_H_
