// Seconds of a program's nodes on a cluster, and what of its devices and links they take meanwhile.
#ifndef TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_
#define TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_

#include <vector>

#include "graph/ops/op.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// Seconds of a node that sends nothing, on operands and results of the call's types.
double LocalSeconds(const Machine& machine, const OpDef& def, const Node& node, const OpCall& call);

// What the nodes of the stages' programs take on a cluster: kernels by roofline, collectives and messages by algorithm
// and topology (cluster.h). There is at least one stage. `ops` must outlive what is returned, the programs need not;
// threads may share it.
NodeTimes TimesOn(const Cluster& cluster, const std::vector<const Program*>& stages, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SIMULATE_CLUSTER_TIMES_H_
