#ifndef TACC_WORKER_RANK_PROGRAM_CPU_KERNELS_H_
#define TACC_WORKER_RANK_PROGRAM_CPU_KERNELS_H_

#include <string>
#include <vector>

#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// The CPU's kernels: binds each op of the table to a function of kernels/cpu. Missing in_ranges and out_ranges mean
// whole, unpadded tensors.
class CpuKernelTable : public KernelTable {
 public:
  // Errors: Unimplemented for an op without a kernel; InvalidArgument for operands that the op's kernel cannot take
  // (the graph's type inference refuses them before), naming op, got and wanted.
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override;

  // The ops that have a kernel, sorted.
  static std::vector<std::string> Ops();
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_CPU_KERNELS_H_
