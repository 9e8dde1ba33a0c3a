#include "kernels/cuda/kernels.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {

const Kernels& KernelsUnderTest() { return cuda::kKernels; }

}  // namespace tacc::kernels
