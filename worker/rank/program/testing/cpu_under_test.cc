#include "worker/rank/program/cpu_kernels.h"
#include "worker/rank/program/testing/kernel_trial.h"

namespace tacc::worker {

const TestedDevice& DeviceUnderTest() {
  static const CpuKernelTable table;
  static const TestedDevice device{table, "CPU", graph::CpuTarget()};
  return device;
}

}  // namespace tacc::worker
