#ifndef TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_
#define TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_

#include "graph/ops/op.h"
#include "graph/planner/cluster.h"
#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// What the nodes of programs on `mesh` take on a cluster: kernels by roofline, collectives by algorithm and topology
// (cluster.h). `ops` must outlive it.
NodeTimes TimesOn(const Cluster& cluster, const Mesh& mesh, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_
