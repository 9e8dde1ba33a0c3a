#include "worker/rank/cuda/memory/cuda_allocator.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAContextLight.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/rank/cuda/device/errors.h"

namespace tacc::worker {
namespace {

namespace allocators = c10::cuda::CUDACachingAllocator;

// As TORCH_CHECK, of the error that LibTorch throws for the same cause.
void ThrowUnlessOk(const absl::Status& status) {
  const std::string text(status.message());
  TORCH_CHECK_WITH(OutOfMemoryError, !absl::IsResourceExhausted(status), text);
  TORCH_CHECK(status.ok(), text);
}

// LibTorch's CUDA allocator over a DeviceWorkspace. What an allocator of its own does beyond memory (pools for captured
// graphs, snapshots, handles for other processes) this one does not have, and says so.
class CudaAllocator : public allocators::CUDAAllocator {
 public:
  explicit CudaAllocator(int device)
      : device_(device),
        workspace_({[device](int64_t num_bytes) { return SystemAllocate(device, num_bytes); }, &SystemFree}) {}

  DeviceWorkspace& workspace() { return workspace_; }

  c10::DataPtr allocate(size_t num_bytes) override {
    void* data = Allocate(num_bytes, c10::cuda::getCurrentCUDAStream(device_).stream());
    return {data, data, &Delete, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device_))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Delete; }
  void copy_data(void* to, const void* from, size_t num_bytes) const override {
    C10_CUDA_CHECK(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice,
                                   c10::cuda::getCurrentCUDAStream(device_).stream()));
  }
  void* raw_alloc(size_t num_bytes) override {
    return Allocate(num_bytes, c10::cuda::getCurrentCUDAStream(device_).stream());
  }
  void* raw_alloc_with_stream(size_t num_bytes, cudaStream_t stream) override { return Allocate(num_bytes, stream); }
  void raw_delete(void* data) override { Delete(data); }

  void init(int) override {}
  bool initialized() override { return true; }
  std::string name() override { return "tacc"; }

  // Nothing is cached: freed memory of the workspace is free at once.
  void emptyCache(c10::MempoolId_t) override {}
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override {}
  std::vector<allocators::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
  void cacheInfo(c10::DeviceIndex, size_t* largest_block) override {
    *largest_block = static_cast<size_t>(workspace_.stats().heap.largest_free_bytes);
  }
  void* getBaseAllocation(void* data, size_t* num_bytes) override {
    if (num_bytes != nullptr) *num_bytes = 0;
    return data;
  }
  using CUDAAllocator::recordStream;
  // Blocks are used on the workspace's streams only, which are ordered among themselves; and memory of the system is
  // given back when the device has finished.
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override {
    const DeviceWorkspace::Stats stats = workspace_.stats();
    c10::CachingDeviceAllocator::DeviceStats result;
    auto& allocated = result.allocated_bytes[0];
    allocated.current = stats.heap.used_bytes + stats.system_bytes;
    allocated.peak = stats.heap.peak_used_bytes + stats.system_bytes;
    result.reserved_bytes[0].current = result.reserved_bytes[0].peak = stats.heap.total_bytes + stats.system_bytes;
    result.num_ooms = stats.num_refused;
    return result;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}

  // Under capture memory comes from the workspace as always: a pool of a graph's own has nothing to add.
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t, std::function<bool(cudaStream_t)>) override {}
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override {}
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override {}
  void createOrIncrefPool(c10::DeviceIndex, c10::MempoolId_t, std::shared_ptr<CUDAAllocator>) override {}

  bool isHistoryEnabled() override { return false; }
  void recordHistory(bool, allocators::CreateContextFn, size_t, allocators::RecordContext, bool,
                     const std::vector<std::string>&) override {
    NotHere("recordHistory");
  }
  void attachOutOfMemoryObserver(allocators::OutOfMemoryObserver) override {}
  void attachAllocatorTraceTracker(allocators::AllocatorTraceTracker) override {}
  allocators::SnapshotInfo snapshot(c10::MempoolId_t, bool) override { return {}; }
  allocators::ShareableHandle shareIpcHandle(void*) override { NotHere("shareIpcHandle"); }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { NotHere("getIpcDevPtr"); }
  std::shared_ptr<allocators::AllocatorState> getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) override {
    NotHere("getCheckpointState");
  }
  allocators::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex,
                                                     std::shared_ptr<allocators::AllocatorState>) override {
    NotHere("setCheckpointPoolState");
  }

  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    const c10::cuda::CUDAGuard guard(device);
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer, 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
      return;
    }
    ThrowUnlessOk(CudaStatus(error, absl::StrCat("access to the memory of cuda:", peer), device));
  }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t num_bytes,
                          cudaStream_t stream, bool p2p_enabled) override {
    if (p2p_enabled || to_device == from_device)
      return cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, num_bytes, stream);
  }

 private:
  static absl::StatusOr<void*> SystemAllocate(int device, int64_t num_bytes) {
    // The current device is this one: LibTorch's operators and InstallCudaAllocator see to that.
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, static_cast<size_t>(num_bytes));
    if (error == cudaSuccess) return data;
    (void)cudaGetLastError();  // Out of memory is no error of the next call.
    return CudaStatus(error, absl::StrCat("allocation of ", num_bytes, " bytes"), device);
  }
  // When the process ends CUDA may be gone before the last tensor: what then fails is lost anyway.
  static void SystemFree(void* data) {
    if (cudaFree(data) != cudaSuccess) (void)cudaGetLastError();
  }
  static void Delete(void* data);

  void* Allocate(size_t num_bytes, cudaStream_t stream) {
    if (num_bytes == 0) return nullptr;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
    const auto capture =
        status == cudaStreamCaptureStatusNone ? DeviceWorkspace::Capture::kOff : DeviceWorkspace::Capture::kOn;
    const absl::StatusOr<void*> data = workspace_.Allocate(static_cast<int64_t>(num_bytes), stream, capture);
    ThrowUnlessOk(data.status());
    return *data;
  }

  [[noreturn]] static void NotHere(const char* what) {
    TORCH_CHECK(false, "the rank's CUDA allocator has no ", what);
    std::abort();
  }

  const int device_;
  DeviceWorkspace workspace_;
};

// LibTorch keeps the pointer until the process ends.
CudaAllocator* installed = nullptr;

void CudaAllocator::Delete(void* data) { installed->workspace_.Free(data); }

}  // namespace

DeviceWorkspace& InstallCudaAllocator(int device) {
  TORCH_CHECK(installed == nullptr, "InstallCudaAllocator is called twice");
  setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/1);
  // One workspace for cuBLAS and cuBLASLt.
  setenv("TORCH_CUBLASLT_UNIFIED_WORKSPACE", "1", /*overwrite=*/1);
  setenv("CUBLASLT_WORKSPACE_SIZE", absl::StrCat(kCublasWorkspaceBytes >> 10).c_str(), /*overwrite=*/1);
  installed = new CudaAllocator(device);
  allocators::allocator.store(installed);
  c10::SetAllocator(c10::DeviceType::CUDA, installed);
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(device));
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(false);
  context.setAllowBF16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  context.setAllowFP16ReductionCuBLAS(/*allow_reduced_precision=*/false);
  return installed->workspace();
}

CublasWorkspace ReserveCublasWorkspace() {
  at::cuda::getCurrentCUDABlasHandle();
  return {at::cuda::getCurrentCUDABlasLtHandle(), at::cuda::getCUDABlasLtWorkspace(),
          static_cast<int64_t>(at::cuda::getCUDABlasLtWorkspaceSize())};
}

}  // namespace tacc::worker
