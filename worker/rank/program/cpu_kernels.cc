#include "worker/rank/program/cpu_kernels.h"

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cross_entropy.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/cpu/dropout.h"
#include "kernels/cpu/einsum.h"
#include "kernels/cpu/embedding.h"
#include "kernels/cpu/expert.h"
#include "kernels/cpu/lr_schedule.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/pointwise.h"
#include "kernels/cpu/rotary.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/shape.h"
#include "kernels/cpu/views.h"

namespace tacc::worker {
namespace device = kernels::cpu;
}  // namespace tacc::worker

#include "worker/rank/program/bind_kernels.h"

namespace tacc::worker {

absl::StatusOr<Kernel> CpuKernelTable::Prepare(const KernelRequest& request) const {
  return PrepareKernel(request, "CPU");
}

std::vector<std::string> CpuKernelTable::Ops() { return KernelOps(); }

}  // namespace tacc::worker
