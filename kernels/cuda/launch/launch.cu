#include <stdexcept>
#include <string>

#include "kernels/cuda/launch/launch.h"

namespace tacc::kernels::cuda {
namespace {

void Check(cudaError_t error) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

struct Facts {
  int device = -1;
  int num_multiprocessors = 0, shared_bytes = 0;  // of a block, without asking for more
};

// Of the current device.
const Facts& CurrentFacts() {
  thread_local Facts facts;
  int device = 0;
  Check(cudaGetDevice(&device));
  if (device != facts.device) {
    Facts found{device};
    Check(cudaDeviceGetAttribute(&found.num_multiprocessors, cudaDevAttrMultiProcessorCount, device));
    Check(cudaDeviceGetAttribute(&found.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlock, device));
    facts = found;
  }
  return facts;
}

}  // namespace

void CheckLaunch() { Check(cudaGetLastError()); }

int NumBusyBlocks() { return CurrentFacts().num_multiprocessors * 16; }

int64_t SharedBytesOfDevice() { return CurrentFacts().shared_bytes - kOwnSharedBytes; }

}  // namespace tacc::kernels::cuda
