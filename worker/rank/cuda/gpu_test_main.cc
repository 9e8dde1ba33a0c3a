// Runs tests of kernels on a GPU: the sources that other binaries run on the host, unchanged.
//
// What tests hand to kernels lies in vectors and on the stack. Here both are pinned memory, which the GPU reads and
// writes at the host's addresses: tests run on a thread whose stack and heap are pinned, and each launch is waited for.
// Scratch is device memory, from a workspace as a rank has it. Without a GPU nothing is run: exit code 77.
#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <mutex>
#include <new>

#include "gtest/gtest.h"
#include "worker/rank/cuda/memory/cuda_allocator.h"

namespace tacc::worker {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kHeapBytes = size_t{1} << 30, kStackBytes = size_t{64} << 20, kWorkspaceBytes = size_t{1} << 30;

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::cerr << "error: " << what << ": " << cudaGetErrorName(error) << ": " << cudaGetErrorString(error) << std::endl;
  _exit(EXIT_FAILURE);
}

void* Pinned(size_t num_bytes) {
  void* data = nullptr;
  CheckCuda(cudaHostAlloc(&data, num_bytes, cudaHostAllocMapped | cudaHostAllocPortable), "pinned memory");
  return data;
}

// Blocks of powers of two, a header before each; what is freed is kept for its size.
class PinnedHeap {
 public:
  void Open() {
    begin_ = end_of_used_ = static_cast<char*>(Pinned(kHeapBytes));
    end_ = begin_ + kHeapBytes;
  }
  bool Owns(const void* data) const { return data >= begin_ && data < end_; }

  // Null: it is full.
  void* Allocate(size_t num_bytes) {
    const size_t size = std::bit_ceil(num_bytes + kHeaderBytes);
    const int order = std::countr_zero(size);
    const std::lock_guard<std::mutex> lock(mutex_);
    char* block = free_[order];
    if (block != nullptr) {
      free_[order] = *Next(block);
    } else {
      if (static_cast<size_t>(end_ - end_of_used_) < size) return nullptr;
      block = end_of_used_;
      end_of_used_ += size;
      *reinterpret_cast<int*>(block) = order;
    }
    return block + kHeaderBytes;
  }
  void Free(void* data) {
    char* block = static_cast<char*>(data) - kHeaderBytes;
    const std::lock_guard<std::mutex> lock(mutex_);
    char*& first = free_[*reinterpret_cast<int*>(block)];
    *Next(block) = first;
    first = block;
  }

 private:
  static constexpr size_t kHeaderBytes = 64;
  static char** Next(char* block) { return reinterpret_cast<char**>(block + sizeof(char*)); }

  std::mutex mutex_;
  char *begin_ = nullptr, *end_ = nullptr, *end_of_used_ = nullptr;
  char* free_[64] = {};
};

// The operators below need it before main and after.
PinnedHeap& Heap() {
  static PinnedHeap& heap = *new (std::malloc(sizeof(PinnedHeap))) PinnedHeap;
  return heap;
}
thread_local bool is_testing = false;

// On the thread whose stack is pinned: cuBLAS, LibTorch's stream and ours are a thread's own.
void* RunTests(void* exit_code) {
  DeviceWorkspace& workspace = InstallCudaAllocator(0);
  ReserveCublasWorkspace();
  void* region = nullptr;
  CheckCuda(cudaMalloc(&region, kWorkspaceBytes), "the workspace");
  workspace.SetWorkspace(region, kWorkspaceBytes, {nullptr});
  is_testing = true;
  *static_cast<int*>(exit_code) = RUN_ALL_TESTS();
  is_testing = false;
  return nullptr;
}

int RunOnPinnedMemory() {
  Heap().Open();
  int exit_code = EXIT_FAILURE;
  pthread_attr_t attributes;
  pthread_t thread;
  if (pthread_attr_init(&attributes) != 0 ||
      pthread_attr_setstack(&attributes, Pinned(kStackBytes), kStackBytes) != 0 ||
      pthread_create(&thread, &attributes, &RunTests, &exit_code) != 0 || pthread_join(thread, nullptr) != 0) {
    std::cerr << "error: no thread on pinned memory" << std::endl;
  }
  CheckCuda(cudaDeviceSynchronize(), "the work on the GPU");
  return exit_code;
}

}  // namespace
}  // namespace tacc::worker

void* operator new(size_t num_bytes) {
  if (tacc::worker::is_testing) {
    if (void* data = tacc::worker::Heap().Allocate(num_bytes); data != nullptr) return data;
  } else if (void* data = std::malloc(num_bytes != 0 ? num_bytes : 1); data != nullptr) {
    return data;
  }
  throw std::bad_alloc();
}

void operator delete(void* data) noexcept {
  tacc::worker::Heap().Owns(data) ? tacc::worker::Heap().Free(data) : std::free(data);
}
void operator delete(void* data, size_t) noexcept { operator delete(data); }

int main(int argc, char** argv) {
  setenv("CUDA_LAUNCH_BLOCKING", "1", /*overwrite=*/1);
  testing::InitGoogleTest(&argc, argv);
  if (GTEST_FLAG_GET(list_tests)) return RUN_ALL_TESTS();
  if (c10::cuda::device_count() == 0) {
    std::cout << "no GPU: nothing was run" << std::endl;
    return tacc::worker::kNoGpu;
  }
  const int exit_code = tacc::worker::RunOnPinnedMemory();
  std::fflush(nullptr);
  // What lies in pinned memory is not destroyed: CUDA may be gone by then.
  _exit(exit_code);
}
