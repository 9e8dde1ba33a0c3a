// EinsumPlan: an einsum of two operands as one (batched) matrix product. No LibTorch.
//
// Each letter of "bsk,nk->bsn" names a dim. Letters in both operands and the result are batch (b), in both operands
// only contracted (k), in one operand and the result free: of the left one rows (m), of the right one columns (n).
// Every tensor whose letters form contiguous groups is used as a strided [batch, rows, columns] view; another is
// permuted first.
#ifndef TACC_KERNELS_EINSUM_PLAN_H_
#define TACC_KERNELS_EINSUM_PLAN_H_

#include <string>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"

namespace tacc::kernels {

// One of the three tensors as the product sees it.
struct EinsumView {
  // Empty: used as it lies. Else the tensor with dims in this order is needed (operand) or made (result): dim i of the
  // permuted tensor is dim perm[i] of the graph's.
  Dims perm;
  int64_t batch_stride = 0, row_stride = 0, column_stride = 0;  // in elements
};

// Where the first operand lies when it is a part of a larger tensor: its dims from `dim` on lie together, and such runs
// begin `pitch` elements apart. pitch 0: it is whole.
struct EinsumPart {
  int dim = 0;
  int64_t pitch = 0;
};

struct EinsumPlan {
  int64_t batch = 1, m = 1, n = 1, k = 1;
  bool swapped = false;            // the left operand is b
  EinsumView left, right, result;  // [batch,m,k] x [batch,k,n] -> [batch,m,n]
  Dims result_dims;
};

// Errors: InvalidArgument for a malformed spec, a letter in one tensor only or twice in one, ranks or extents that
// differ.
absl::StatusOr<EinsumPlan> PlanEinsum(const std::string& spec, const Dims& a, const Dims& b);

// `view`, of an operand [dims] that is whole, where it is a part: the strides over several runs. The part begins where
// a group of the product's letters does, and the view does not permute.
EinsumView ViewOfPart(const EinsumView& view, const Dims& dims, const EinsumPart& part);

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_EINSUM_PLAN_H_
