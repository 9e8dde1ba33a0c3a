#ifndef TACC_WORKER_RANK_CUDA_CUDA_KERNELS_H_
#define TACC_WORKER_RANK_CUDA_CUDA_KERNELS_H_

#include <string>
#include <vector>

#include "worker/rank/kernel_table.h"

namespace tacc::worker {

// A GPU's kernels: binds each op of the table to a function of kernels/cuda, which queues on the current stream.
// Missing in_ranges and out_ranges mean whole, unpadded tensors.
class CudaKernelTable : public KernelTable {
 public:
  // Errors: Unimplemented for an op without a kernel; InvalidArgument for operands that the op's kernel cannot take
  // (the graph's type inference refuses them before), naming op, got and wanted.
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override;

  // The ops that have a kernel, sorted.
  static std::vector<std::string> Ops();
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_CUDA_KERNELS_H_
