#ifndef TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_
#define TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_

#include <vector>

#include "graph/ops/op.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// What a node that sends nothing takes, of the types given.
double LocalSeconds(const Machine& machine, const OpDef& def, const Node& node, const OpCall& call);

// What the nodes of the stages' programs take on a cluster: kernels by roofline, collectives and messages by algorithm
// and topology (cluster.h). `ops` must outlive it, the programs need not.
NodeTimes TimesOn(const Cluster& cluster, const std::vector<const Program*>& stages, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_
