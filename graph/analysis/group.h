#ifndef TACC_GRAPH_ANALYSIS_GROUP_H_
#define TACC_GRAPH_ANALYSIS_GROUP_H_

#include <cstdint>

#include "graph/ir/graph.h"
#include "graph/ir/sharding.h"

namespace tacc::graph {

// How the ranks of a group lie on nodes, when ranks fill nodes in order.
struct GroupShape {
  int64_t size = 1;     // ranks
  int64_t in_node = 1;  // of them in one node
  int64_t num_nodes() const { return size / in_node; }
};
// The groups over `axes` of the mesh. `devices_per_node` 0: one node has all.
GroupShape ShapeOf(const Mesh& mesh, const AxisList& axes, int64_t devices_per_node);
// The group of ranks that a collective runs in: those of its mesh axes, or the same rank of several stages.
GroupShape GroupOf(const Node& node, const Mesh& mesh, int64_t devices_per_node);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_ANALYSIS_GROUP_H_
