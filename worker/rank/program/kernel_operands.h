// The operands of some nodes as kernels take them, for devices that have more than one kernel for a node.
#ifndef TACC_WORKER_RANK_PROGRAM_KERNEL_OPERANDS_H_
#define TACC_WORKER_RANK_PROGRAM_KERNEL_OPERANDS_H_

#include <vector>

#include "worker/rank/program/binding.h"

namespace tacc::worker {

// A product's node: y = (acc +) einsum(a, b).
struct ProductOf {
  TensorView acc, a, b, y;         // acc: without data where there is none
  kernels::EinsumPart part;        // of what a is
  std::vector<TensorView> copied;  // what must be put into scratch memory first, one behind the other, to be b

  void Run(const kernels::Kernels& kernels, const kernels::EinsumKernel& kernel) const;
};
ProductOf ProductOfNode(const Binding& b);

// A node of attention or its gradient.
struct AttentionOf {
  TensorView q, k, v;
  kernels::AttentionExtras extras;
  kernels::AttentionParameters parameters;
  TensorView out, lse;          // the gradient reads them
  TensorView dout, dq, dk, dv;  // the gradient's; dout without data: the forward
  TensorView dbias;             // with data: the gradient of the bias alone

  bool is_gradient() const { return dout.data != nullptr; }
};
// Alibi slopes are those of the heads that this rank holds.
AttentionOf AttentionOfNode(const Binding& b);

// Of a node of top_k, or of its gradient.
kernels::TopKGroups TopKGroupsOf(const Binding& b);
kernels::TopKWeights TopKWeightsOf(const Binding& b);

// Of a node that updates a weight element by element (UpdateOp, graph/ops/update_ops.h).
kernels::WeightUpdate WeightUpdateOf(const Binding& b);

// All operands of a node, each with how much of it exists.
std::vector<kernels::BoundedTensor> BoundedOperands(const Binding& b);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_KERNEL_OPERANDS_H_
