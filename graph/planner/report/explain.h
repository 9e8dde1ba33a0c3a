#ifndef TACC_GRAPH_PLANNER_REPORT_EXPLAIN_H_
#define TACC_GRAPH_PLANNER_REPORT_EXPLAIN_H_

#include <string>

#include "absl/status/statusor.h"
#include "graph/ops/op.h"
#include "graph/planner/report/finalist.h"

namespace tacc::graph {

// Text, a fact a line, about what `name` names in the plan's programs:
// - a parameter or state ("model.layers.0.mlp.up_proj.weight", the end of a name is enough; "weights/...",
//   "exp_avg/..."): how it rests on the mesh and why, what a rank holds, what is gathered when;
// - a value ("%y.12"): how it lies, and where its split and its pending sums come from;
// - a collective, by its result ("%all_gather.3"): why it is there, between whom, what it moves and what it costs;
// - a kind of collective ("all_gather", "send"): the same, summed over all of them.
//
// Of a pipeline each fact says of which stage it is: a state on several stages and a kind of collective are followed
// through all of them.
// Errors: InvalidArgument when nothing has the name, with the nearest ones, or several have.
absl::StatusOr<std::string> Explain(const Finalist& finalist, const OpTable& ops, const std::string& name);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_EXPLAIN_H_
