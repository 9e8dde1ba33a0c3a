// An einsum's equation, and which of its dims are batch, free and contracted.
#ifndef TACC_GRAPH_OPS_EINSUM_SPEC_H_
#define TACC_GRAPH_OPS_EINSUM_SPEC_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "graph/ir/type.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// "bsk,nk->bsn": one letter a dim. A letter in both operands and the result is batch, in both operands only contracted,
// in one operand and the result free.
struct EinsumSpec {
  std::string a;
  std::string b;
  std::string y;
};

// Errors: InvalidArgument when the text has another form, a letter is repeated in one part, is in one operand only, or
// in the result only.
absl::StatusOr<EinsumSpec> ParseEinsum(absl::string_view spec);

// What a product multiplies. `a` is the number of its first operand that is a factor; where the attributes say so, only
// [start, limit) of the `parts` equal parts of its dim `dim`. What follows is b, or its parts, one behind the other in
// dim 0. (Parts are counted, not entries, so that a rank that has its share of each says the same.)
struct Factors {
  TensorType a, b;
};
Factors FactorsOf(const OpCall& call, int a);

// The extent of each letter. Errors: InvalidArgument when a rank is not the number of letters or extents of a letter
// differ.
absl::StatusOr<std::map<char, int64_t>> EinsumExtents(const EinsumSpec& spec, const TensorType& a, const TensorType& b);

// Which tensors of einsum(a, b) -> y a matrix product must permute into a copy: their letters are not in groups, or the
// batch letters come last.
struct EinsumCopies {
  bool a = false, b = false, y = false;
};
EinsumCopies EinsumCopiesOf(const EinsumSpec& spec);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_EINSUM_SPEC_H_
