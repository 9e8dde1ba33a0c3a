// The kernels of a device, by op: what the executor asks for when it binds a node.
#ifndef TACC_WORKER_RANK_DEVICE_KERNEL_TABLE_H_
#define TACC_WORKER_RANK_DEVICE_KERNEL_TABLE_H_

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "graph/ir/graph.h"
#include "kernels/tensor.h"

namespace tacc::worker {

// One node, bound: its operands and results lie at fixed addresses in the arena.
struct KernelRequest {
  const graph::Node* node = nullptr;
  std::vector<kernels::TensorView> in;
  std::vector<kernels::TensorView> out;
  // The logical range of each dim that this rank holds, [operand][dim] and [result][dim]: offsets of vocabulary and
  // sequence shards, and logical bounds of padded ones.
  std::vector<std::vector<graph::Range>> in_ranges;
  std::vector<std::vector<graph::Range>> out_ranges;
  // The logical dims of each operand. May be left empty when all are whole.
  std::vector<kernels::Dims> in_logical;
};

// A prepared call: no allocation of its own beyond what the op's workspace_bytes declares.
using Kernel = std::function<void()>;

// The kernels of one device kind. Collectives, leaves and aliases are the executor's own business and never asked for.
class KernelTable {
 public:
  virtual ~KernelTable() = default;
  // Errors: Unimplemented when the device has no kernel for the op or these dtypes, naming both.
  virtual absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const = 0;

  // Copies bytes to the device, at a multiple of 64, where they stay as long as kernels may be called.
  using KeepOnDevice = std::function<absl::StatusOr<const void*>(const std::vector<char>& bytes)>;
  // One call in place of the first `num_nodes` of several nodes.
  struct Joint {
    Kernel kernel;
    size_t num_nodes = 1;
  };
  // Of nodes of one op that follow each other, at least one: as many of the first as the device does better in one
  // call, with the bits that their own calls would leave. Here the first alone. Errors: as Prepare, or of `keep`.
  virtual absl::StatusOr<Joint> PrepareFirst(absl::Span<const KernelRequest> requests, const KeepOnDevice&) const {
    absl::StatusOr<Kernel> kernel = Prepare(requests.front());
    if (!kernel.ok()) return kernel.status();
    return Joint{*std::move(kernel), 1};
  }
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_KERNEL_TABLE_H_
