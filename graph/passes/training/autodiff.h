#ifndef TACC_GRAPH_PASSES_TRAINING_AUTODIFF_H_
#define TACC_GRAPH_PASSES_TRAINING_AUTODIFF_H_

#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Appends to `graph` the nodes that compute `seed` x d(loss)/d(value) for each of `values` by reverse accumulation, and
// returns the gradients (kNoValue where the loss does not depend on the value). `loss` is a floating scalar, `seed`,
// its cotangent, another that does not depend on `values`. A backward node has the module path of the forward node it
// belongs to. Nodes between are visited once, in reverse line order.
//
// Errors: InvalidArgument naming node and module when a cotangent reaches an op without a derivative.
absl::StatusOr<std::vector<ValueId>> Differentiate(Graph& graph, const OpTable& ops, ValueId loss, ValueId seed,
                                                   const std::vector<ValueId>& values);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_AUTODIFF_H_
