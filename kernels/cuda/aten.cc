#include "kernels/cuda/aten.h"

#include "kernels/cpu/aten_call.h"
#include "kernels/cuda/aten_kernels.h"

namespace tacc::kernels::cuda {
namespace {

absl::StatusOr<std::shared_ptr<const AtenKernel>> PrepareAten(const AtenCall& call) {
  return cpu::PrepareAtenOn(kDevice, call);
}

}  // namespace

const AtenKernels kAten = {
    .PrepareAten = PrepareAten,
};

}  // namespace tacc::kernels::cuda
