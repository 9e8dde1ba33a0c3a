#include "kernels/cpu/kernels.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {

const Kernels& KernelsUnderTest() { return cpu::kKernels; }

}  // namespace tacc::kernels
