#ifndef TACC_WORKER_RANK_PROGRAM_CPU_KERNELS_H_
#define TACC_WORKER_RANK_PROGRAM_CPU_KERNELS_H_

#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// The CPU's kernels, by BindKernel.
class CpuKernelTable : public KernelTable {
 public:
  // Errors: as BindKernel.
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_CPU_KERNELS_H_
