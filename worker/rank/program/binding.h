#ifndef TACC_WORKER_RANK_PROGRAM_BINDING_H_
#define TACC_WORKER_RANK_PROGRAM_BINDING_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/sequence_order.h"
#include "kernels/contract/kernels.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

using kernels::Dims;
using kernels::TensorView;

// A node that is to be bound to one of a device's kernels: the request with short names for its parts. Borrows the
// request, and lives no longer.
struct Binding {
  const kernels::Kernels& kernels;
  const KernelRequest& request;

  const TensorView& in(size_t i) const { return request.in[i]; }
  const TensorView& out(size_t i) const { return request.out[i]; }
  // An optional operand or result: a view without data when it is absent.
  TensorView in_or_absent(size_t i) const { return i < request.in.size() ? request.in[i] : TensorView(); }
  TensorView out_or_absent(size_t i) const { return i < request.out.size() ? request.out[i] : TensorView(); }
  bool has(const std::string& name) const { return request.node->attrs.count(name) > 0; }
  template <typename T>
  T attr(const std::string& name, T fallback = T()) const {
    return graph::GetAttr<T>(request.node->attrs, name, fallback);
  }
  // The result that a norm's gradient has last where it is asked for a copy, and the optional one before it.
  TensorView copy() const { return has("copy") ? request.out.back() : TensorView(); }
  TensorView out_before_copy(size_t i) const { return i + has("copy") < request.out.size() ? out(i) : TensorView(); }
  int dim(const std::string& name = "dim") const { return static_cast<int>(attr<int64_t>(name)); }
  Dims dims(const std::string& name) const {
    const std::vector<int64_t> values = attr<std::vector<int64_t>>(name);
    return Dims(values.begin(), values.end());
  }
  // Where the rank's part begins on a dim, and how much of it exists.
  int64_t in_begin(size_t operand, int dim) const {
    return operand < request.in_ranges.size() ? request.in_ranges[operand][dim].begin : 0;
  }
  int64_t out_begin(size_t result, int dim) const {
    return result < request.out_ranges.size() ? request.out_ranges[result][dim].begin : 0;
  }
  const Dims& logical(size_t operand) const {
    return request.in_logical.empty() ? in(operand).dims : request.in_logical[operand];
  }
  graph::Range in_range(size_t operand, int dim) const {
    return request.in_ranges.empty() ? graph::Range{0, in(operand).dims[dim]} : request.in_ranges[operand][dim];
  }
  // The order of a sequence of `extent`.
  graph::SequenceOrder order(int64_t extent) const { return {extent, attr<int64_t>("zigzag")}; }
  // Of the sequence in dim 1 of an operand of attention.
  std::vector<kernels::SequenceRun> runs(size_t operand, int64_t shift) const {
    std::vector<kernels::SequenceRun> runs;
    for (const graph::PositionRun& run :
         graph::PositionRuns(order(logical(operand)[1]), in_range(operand, 1), attr<int64_t>("block"), shift)) {
      runs.push_back({run.length, run.position, run.block});
    }
    return runs;
  }
  // Of the sequence that is made in dim `dim` of the first result.
  std::vector<int64_t> positions(int dim) const {
    const int64_t length = attr<int64_t>("length");
    const graph::Range range = request.out_ranges.empty() ? graph::Range{0, length} : request.out_ranges[0][dim];
    return graph::Positions(order(length), range);
  }
  Dims in_bounds(size_t operand) const {
    if (operand >= request.in_ranges.size()) return in(operand).dims;
    Dims bounds;
    for (const graph::Range& range : request.in_ranges[operand]) bounds.push_back(range.end - range.begin);
    return bounds;
  }
};

// Makes the kernel of a node, or says why there is none.
using PrepareKernel = absl::StatusOr<Kernel> (*)(const Binding&);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BINDING_H_
