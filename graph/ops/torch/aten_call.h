// What a node of the ops `aten` and `aten_vjp` says: the call of an operator of LibTorch, and what of its derivative is
// asked for.
#ifndef TACC_GRAPH_OPS_TORCH_ATEN_CALL_H_
#define TACC_GRAPH_OPS_TORCH_ATEN_CALL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// The types of the operator's results, of the attributes result_dtypes, result_ranks and result_dims: LibTorch alone
// could infer them. Errors: InvalidArgument for lists that do not fit one another.
absl::StatusOr<std::vector<TensorType>> AtenResultTypes(const Attrs& attrs);

// The dim along which the operator works where each row along it is computed for itself, so that all other dims may be
// split; -1 where nothing is known of the operator, or of this call.
int64_t AtenRowDim(const OpCall& call);

// Whether LibTorch has it by itself: an operator of another namespace than aten may be of a library that a worker gives
// its ranks.
inline bool IsOfLibTorch(absl::string_view schema) { return absl::StartsWith(schema, "aten::"); }

// Checks attributes of a call with so many operands: the schema's form, and that arguments name operands and numbers
// that there are. Errors: InvalidArgument.
absl::Status CheckAtenCall(const Attrs& attrs, int64_t num_operands);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_TORCH_ATEN_CALL_H_
