#ifndef TACC_WORKER_RANK_CUDA_CUDA_DEVICE_H_
#define TACC_WORKER_RANK_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/launch/stream.h"
#include "worker/rank/cuda/cuda_kernels.h"
#include "worker/rank/cuda/gpu_activity.h"
#include "worker/rank/cuda/memory/device_workspace.h"
#include "worker/rank/cuda/tuning/attention_bench.h"
#include "worker/rank/cuda/tuning/attention_picker.h"
#include "worker/rank/cuda/tuning/product_picker.h"
#include "worker/rank/device/device.h"
#include "worker/rank/gpu/gpu_module.h"

struct CUevent_st;

namespace tacc::worker {

// A GPU. The queue is a stream of its own, which is also LibTorch's and kernels/cuda's current one on the thread that
// made the object and that must use it; batches are copied ahead on a second stream. Work is recorded as a CUDA graph.
class CudaDevice : public Device {
 public:
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Open(int ordinal, const GpuOptions& options);
  ~CudaDevice() override;

  int ordinal() const { return ordinal_; }
  // The queue.
  kernels::cuda::Stream compute() const { return compute_; }
  // A place in a stream of this GPU.
  absl::StatusOr<std::unique_ptr<Mark>> CreateMarkIn(kernels::cuda::Stream stream);

  bool is_asynchronous() const override { return true; }
  const KernelTable& kernels() const override { return kernels_; }
  absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t arena_bytes, int64_t workspace_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateDevice(int64_t num_bytes) override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateHost(int64_t num_bytes) override;
  void Copy(const Region& from, const Region& to) override;
  void Clear(const Region& region) override;
  void Upload(const void* host, const Region& to) override;
  void Download(const Region& from, void* host) override;
  void Publish(uint32_t value, uint32_t* word) override;
  void UploadAhead(const void* host, const Region& to) override;
  absl::Status Synchronize() override;
  absl::Status Check() override;
  absl::Status StatusOf(const std::exception& exception) const override;
  // Counts what other processes took of the GPU meanwhile too; not the context, which comes first.
  std::optional<int64_t> MemoryUsedBytes() override;
  absl::StatusOr<std::unique_ptr<Mark>> CreateMark() override { return CreateMarkIn(compute_); }
  absl::StatusOr<std::unique_ptr<Mark>> CreateMarkAhead() override { return CreateMarkIn(copy_); }
  absl::Status StartActivity(Mark& origin) override;
  absl::StatusOr<std::vector<TimeSpan>> StopActivity() override;
  absl::StatusOr<std::unique_ptr<Recording>> Record(const std::function<absl::Status()>& queue) override;
  std::vector<AttentionChoice> MeasuredAttention() const override { return attention_.Measured(); }
  void TakeAttention(const std::vector<AttentionChoice>& choices) override { attention_.Take(choices); }
  std::vector<ProductChoice> MeasuredProducts() const override { return products_->Measured(); }
  void MeasureProducts(const std::vector<std::string>& shapes) override { products_->MeasureAnew(shapes); }
  void TakeProducts(const std::vector<ProductChoice>& choices) override { products_->Take(choices); }

 private:
  class EventMark;
  class GraphRecording;

  CudaDevice(int ordinal, DeviceWorkspace* workspace);
  absl::Status CreateStreams();
  // Who multiplies on the queue.
  absl::Status CreateProducts(const GpuOptions& options);
  absl::StatusOr<std::unique_ptr<Arena>> Allocate(int64_t arena_bytes, int64_t workspace_bytes, const char* what);
  // Keeps the first error of calls that return none, for the next one that does.
  void Keep(int cuda_error, const char* what);
  absl::Status Check(int cuda_error, const char* what);
  // On a stream, between host memory and a region, or regions, of which one is contiguous, as CUDA finds out.
  void CopyOn(kernels::cuda::Stream stream, const Region& from, const Region& to);

  const int ordinal_;
  DeviceWorkspace& workspace_;
  RecordedAttentionBench attention_bench_;
  AttentionPicker attention_;
  std::unique_ptr<kernels::cuda::CublasLt> cublaslt_;
  std::unique_ptr<ProductPicker> products_;
  const CudaKernelTable kernels_;
  kernels::cuda::Stream compute_ = nullptr, copy_ = nullptr;
  CUevent_st* copied_ = nullptr;
  std::unique_ptr<kernels::cuda::StreamScope> scope_;
  GpuActivity activity_;
  std::unique_ptr<Arena> activity_begin_;  // Cleared where a trace begins; null: there was none.
  std::optional<int64_t> free_at_open_;    // bytes
  absl::Status status_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_CUDA_DEVICE_H_
