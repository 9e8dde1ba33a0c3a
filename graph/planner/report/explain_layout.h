#ifndef TACC_GRAPH_PLANNER_REPORT_EXPLAIN_LAYOUT_H_
#define TACC_GRAPH_PLANNER_REPORT_EXPLAIN_LAYOUT_H_

#include <string>

#include "absl/status/status.h"
#include "graph/ops/op.h"
#include "graph/planner/report/finalist.h"

namespace tacc::graph {

// Whether --explain asks for a layout: "tp=8", "fsdp=64,gc=true".
bool NamesLayout(const std::string& text);

// Sets in `request` what the text names, in place of what the job says of it; all else stays as the job leaves it. A
// name is an axis (pp dp fsdp ep cp tp), gc (true or false), zero_stage (1 to 3),
// reduce_each_micro_batch (true or false), num_micro_batches or per_device_train_batch_size. Errors: InvalidArgument
// with the names and values that there are.
absl::Status SetLayout(const std::string& text, PlanRequest& request);

// The best layout that `text` allows, against the one that is taken: in words what makes it slower or faster, then both
// steps part by part, in seconds that add up to each step, and both memories by kind in bytes. `asked`: that layout,
// which may not fit; `finalist`: the same with its programs, null where it does not fit.
std::string ExplainLayout(const Finalist& taken, const Candidate& asked, const Finalist* finalist, const OpTable& ops,
                          const std::string& text);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_EXPLAIN_LAYOUT_H_
