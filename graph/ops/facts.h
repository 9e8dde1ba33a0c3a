#ifndef TACC_GRAPH_OPS_FACTS_H_
#define TACC_GRAPH_OPS_FACTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ops/op.h"

// Pieces that the families' facts are built from.
namespace tacc::graph {

using Types = std::vector<TensorType>;

// InvalidArgument "NAME is TYPE; wanted WANTED".
absl::Status Wanted(absl::string_view name, const TensorType& type, absl::string_view wanted);

absl::Status WantFloating(absl::string_view name, const TensorType& type);
absl::Status WantFloatingScalar(absl::string_view name, const TensorType& type);
absl::Status WantDims(absl::string_view name, const TensorType& type, const Dims& dims);
absl::Status WantType(absl::string_view name, const TensorType& type, const TensorType& wanted);
// The elements may be of any type; the dims are those of `of`, which `of_name` names in the error, or the last of them.
absl::Status WantLastDims(absl::string_view name, const TensorType& type, absl::string_view of_name, const Dims& of);
absl::Status WantRank(absl::string_view name, const TensorType& type, int rank);

// The attribute `dtype`, or `fallback` when absent. It has been checked to name a dtype.
DType DTypeAttr(const OpCall& call, DType fallback);

// Floating with both: the wider of f32/f64 in either, else a's.
DType Promote(DType a, DType b);

// One factor per dim of the first result; every operand and result is aligned at its trailing dims.
Rule PointwiseRule(const OpCall& call, std::vector<std::vector<int>> linear_in);

// Adds one factor per entry of `dims` and returns their numbers.
std::vector<int> AddFactors(Rule& rule, const Dims& dims);

// `list` without its last entry.
std::vector<int> Leading(std::vector<int> list);

// `reuses` of an op whose only result may be written over operand `operand` when their types are equal.
std::function<std::vector<int>(const OpCall&)> ReuseIfSameType(int operand);

// An error for a cotangent of a result that only serves the backward pass.
absl::Status NoCotangent(const VjpCall& call, int result, absl::string_view name);

// Indices of the sequence are positions in zigzag order (graph/ir/sequence_order.h) where the attribute says so.
absl::Status CheckZigzag(const OpCall& call, int64_t length);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_FACTS_H_
