#ifndef TACC_KERNELS_TESTING_KERNELS_UNDER_TEST_H_
#define TACC_KERNELS_TESTING_KERNELS_UNDER_TEST_H_

#include "kernels/contract/kernels.h"

namespace tacc::kernels {

// The kernels that the suites of this folder hold to their contracts. Each binary of tests defines it for one device
// (cpu_under_test.cc, cuda_under_test.cc); operands lie in host memory, which a GPU's
// binary makes its kernels reach (worker/rank/cuda/gpu_test_main.cc).
const Kernels& KernelsUnderTest();

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_TESTING_KERNELS_UNDER_TEST_H_
