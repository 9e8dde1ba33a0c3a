#include "worker/rank/cuda/cuda_kernels.h"
#include "worker/rank/program/testing/kernel_trial.h"

namespace tacc::worker {

const TestedDevice& DeviceUnderTest() {
  static const CudaKernelTable table;
  static const TestedDevice device{table, "GPU", graph::CudaTarget()};
  return device;
}

}  // namespace tacc::worker
