#include "worker/rank/cuda/cuda_kernels.h"

#include "kernels/cuda/adamw.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/dispatch.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/einsum.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/expert.h"
#include "kernels/cuda/lr_schedule.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/pointwise.h"
#include "kernels/cuda/rotary.h"
#include "kernels/cuda/shape.h"
#include "kernels/cuda/views.h"

namespace tacc::worker {
namespace device = kernels::cuda;
}  // namespace tacc::worker

#include "worker/rank/bind_kernels.h"

namespace tacc::worker {

absl::StatusOr<Kernel> CudaKernelTable::Prepare(const KernelRequest& request) const {
  return PrepareKernel(request, "GPU");
}

std::vector<std::string> CudaKernelTable::Ops() { return KernelOps(); }

}  // namespace tacc::worker
