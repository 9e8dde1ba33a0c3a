#ifndef TACC_GRAPH_PASSES_TRAINING_MIXED_PRECISION_H_
#define TACC_GRAPH_PASSES_TRAINING_MIXED_PRECISION_H_

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Gives the forward graph matrix products and attention in `dtype` (bf16 or f16), the policy of torch.autocast: their
// floating operands are cast (but for OpDef::exact_operands), biases follow the product they are added to, everything
// else keeps the type it had or gets by inference (norms, softmax and losses compute in fp32 inside; the residual
// stream stays fp32). Parameters stay fp32 and are cast at their use. Returns whether anything changed.
absl::StatusOr<bool> MixedPrecision(Graph& forward, const OpTable& ops, DType dtype);

// Folds `cast` into the op before it, where that op can write the type itself (it takes a `dtype` attribute) and
// nothing else reads its result. Saves a pass over memory; the value is rounded once instead of twice. Returns whether
// anything changed.
bool FoldCasts(Graph& graph, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_MIXED_PRECISION_H_
