#include "worker/rank/program/cpu_kernels.h"

#include "kernels/cpu/kernels.h"
#include "worker/rank/program/bind_kernels.h"

namespace tacc::worker {

absl::StatusOr<Kernel> CpuKernelTable::Prepare(const KernelRequest& request) const {
  return BindKernel(kernels::cpu::kKernels, request);
}

}  // namespace tacc::worker
