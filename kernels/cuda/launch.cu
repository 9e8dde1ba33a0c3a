#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"

namespace tacc::kernels::cuda {

void CheckLaunch() {
  if (const cudaError_t error = cudaGetLastError(); error != cudaSuccess)
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

int NumBusyBlocks() {
  thread_local int device = -1, blocks = 0;
  int current = 0;
  cudaGetDevice(&current);
  if (current != device) {
    int num_sms = 0;
    cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, current);
    device = current;
    blocks = (num_sms > 0 ? num_sms : 1) * 16;
  }
  return blocks;
}

}  // namespace tacc::kernels::cuda
