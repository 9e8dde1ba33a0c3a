#ifndef TACC_WORKER_RANK_CUDA_MEMORY_CUDA_ALLOCATOR_H_
#define TACC_WORKER_RANK_CUDA_MEMORY_CUDA_ALLOCATOR_H_

#include <cstdint>

#include "worker/rank/cuda/memory/device_workspace.h"

struct cublasLtContext;

namespace tacc::worker {

// What cuBLAS (and cuBLASLt with it) keeps for each stream that it multiplies on.
inline constexpr int64_t kCublasWorkspaceBytes = int64_t{4096} * 8 << 10;

// Makes `device` LibTorch's current one and everything that LibTorch, cuBLAS and cuDNN allocate there come from the
// workspace that is returned, and lives as long as the process. To be called once, before LibTorch is used on any GPU.
// Also fixes kCublasWorkspaceBytes, which cuBLAS needs to be deterministic, and LibTorch's arithmetic: f32 products in
// f32 (no TF32), sums of bf16 and f16 products in f32.
DeviceWorkspace& InstallCudaAllocator(int device);

// Makes cuBLAS take what it keeps for LibTorch's current stream. Before there is a workspace this comes from the
// system, out of the reserve beside the plan; later, at the first product, it would lie in the midst of the workspace
// for good. Returns it, and LibTorch's handle, for those who multiply by cuBLASLt on that stream too. Throws where CUDA
// fails.
struct CublasWorkspace {
  cublasLtContext* handle = nullptr;
  void* data = nullptr;
  int64_t num_bytes = 0;
};
CublasWorkspace ReserveCublasWorkspace();

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_MEMORY_CUDA_ALLOCATOR_H_
