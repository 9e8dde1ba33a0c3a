#include "worker/rank/cuda/cuda_device.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "kernels/cuda/collective.h"
#include "worker/rank/cuda/device/errors.h"
#include "worker/rank/cuda/device/exceptions.h"
#include "worker/rank/cuda/device/runs.h"
#include "worker/rank/cuda/memory/cuda_allocator.h"
#include "worker/rank/cuda/tuning/attention_on_gpu.h"

namespace tacc::worker {
namespace {

// Of the current GPU. None when it cannot be asked: what it is asked to do next says why.
std::optional<int64_t> FreeBytes() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess) return static_cast<int64_t>(free);
  (void)cudaGetLastError();
  return std::nullopt;
}

}  // namespace

class CudaDevice::EventMark : public Mark {
 public:
  EventMark(CudaDevice* device, cudaEvent_t event, cudaStream_t stream)
      : device_(*device), event_(event), stream_(stream) {}
  ~EventMark() override { (void)cudaEventDestroy(event_); }
  absl::Status Set() override { return device_.Check(cudaEventRecord(event_, stream_), "a mark"); }
  absl::Status Wait() override { return device_.Check(cudaEventSynchronize(event_), "the end of a step"); }
  absl::StatusOr<double> SecondsSince(const Mark& earlier) const override {
    float milliseconds = 0;
    TACC_RETURN_IF_ERROR(
        device_.Check(cudaEventElapsedTime(&milliseconds, static_cast<const EventMark&>(earlier).event_, event_),
                      "the time of work"));
    return 1e-3 * static_cast<double>(milliseconds);
  }

 private:
  CudaDevice& device_;
  const cudaEvent_t event_;
  const cudaStream_t stream_;
};

class CudaDevice::GraphRecording : public Recording {
 public:
  GraphRecording(CudaDevice* device, cudaGraphExec_t graph) : device_(*device), graph_(graph) {}
  ~GraphRecording() override { (void)cudaGraphExecDestroy(graph_); }
  absl::Status Replay() override {
    return device_.Check(cudaGraphLaunch(graph_, device_.compute_), "the launch of a recorded graph");
  }

 private:
  CudaDevice& device_;
  const cudaGraphExec_t graph_;
};

absl::StatusOr<std::unique_ptr<CudaDevice>> CudaDevice::Open(int ordinal, const GpuOptions& options) {
  TACC_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(ordinal), "opening the GPU", ordinal));
  DeviceWorkspace& workspace = InstallCudaAllocator(ordinal);
  at::Context& context = at::globalContext();
  context.setAllowTF32CuBLAS(options.tf32 == GpuOptions::Tf32::kOn);
  context.setDeterministicAlgorithms(options.determinism == GpuOptions::Determinism::kRequired, /*warn_only=*/false);
  // Memory that operators fill for the sake of determinism is filled by our kernels, or not read.
  context.setDeterministicFillUninitializedMemory(false);
  std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal, &workspace));
  device->free_at_open_ = FreeBytes();
  TACC_RETURN_IF_ERROR(device->CreateStreams());
  TACC_RETURN_IF_ERROR(device->CreateProducts(options));
  return device;
}

CudaDevice::CudaDevice(int ordinal, DeviceWorkspace* workspace)
    : ordinal_(ordinal),
      workspace_(*workspace),
      attention_bench_({this, workspace, &MakeAttentionOnGpu, &DoOnPoolStream}),
      attention_(&attention_bench_),
      kernels_(
          [this](const kernels::TensorView& q, const kernels::TensorView& k, const kernels::AttentionExtras& extras,
                 const kernels::AttentionParameters& parameters) { return attention_.Pick(q, k, extras, parameters); },
          [this](const ProductCall& call) { return products_->Pick(call); }) {}

absl::Status CudaDevice::CreateStreams() {
  TACC_RETURN_IF_ERROR(Check(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking), "a stream"));
  TACC_RETURN_IF_ERROR(Check(cudaStreamCreateWithFlags(&copy_, cudaStreamNonBlocking), "a stream"));
  TACC_RETURN_IF_ERROR(Check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming), "an event"));
  c10::cuda::setCurrentCUDAStream(c10::cuda::getStreamFromExternal(compute_, static_cast<c10::DeviceIndex>(ordinal_)));
  scope_ = std::make_unique<kernels::cuda::StreamScope>(compute_);
  return absl::OkStatus();
}

absl::Status CudaDevice::CreateProducts(const GpuOptions& options) {
  using CublasLt = kernels::cuda::CublasLt;
  try {
    const CublasWorkspace reserved = ReserveCublasWorkspace();
    cublaslt_ = std::make_unique<CublasLt>(
        CublasLt::Options{reserved.handle, reserved.data, reserved.num_bytes,
                          options.tf32 == GpuOptions::Tf32::kOn ? CublasLt::Tf32::kOn : CublasLt::Tf32::kOff});
    products_ = std::make_unique<ProductPicker>(this, cublaslt_.get(), options.products);
  } catch (const std::exception& exception) {
    return StatusOfException(exception, ordinal_);
  }
  return absl::OkStatus();
}

// The process ends soon after; what fails here fails on a GPU that has failed before.
CudaDevice::~CudaDevice() {
  if (compute_ != nullptr) (void)cudaStreamSynchronize(compute_);
  scope_.reset();
  if (copied_ != nullptr) (void)cudaEventDestroy(copied_);
  if (copy_ != nullptr) (void)cudaStreamDestroy(copy_);
  if (compute_ != nullptr) (void)cudaStreamDestroy(compute_);
}

void CudaDevice::Keep(int cuda_error, const char* what) { status_.Update(CudaStatus(cuda_error, what, ordinal_)); }

absl::Status CudaDevice::Check(int cuda_error, const char* what) {
  Keep(cuda_error, what);
  return status_;
}

absl::StatusOr<std::unique_ptr<Arena>> CudaDevice::Allocate(int64_t arena_bytes, int64_t workspace_bytes,
                                                            const char* what) {
  const size_t total = static_cast<size_t>(Arena::TotalBytes(arena_bytes, workspace_bytes));
  void* data = nullptr;
  if (const cudaError_t error = cudaMalloc(&data, total); error != cudaSuccess) {
    size_t free = 0, of = 0;
    (void)cudaMemGetInfo(&free, &of);
    return CudaStatus(error, absl::StrCat(what, " of ", total, " bytes; ", free, " of the GPU's ", of, " are free"),
                      ordinal_);
  }
  std::unique_ptr<Arena> arena = Arena::Adopt(static_cast<char*>(data), arena_bytes, workspace_bytes,
                                              [](char* memory) { (void)cudaFree(memory); });
  TACC_RETURN_IF_ERROR(Check(cudaMemsetAsync(data, 0, total, compute_), "clearing memory"));
  TACC_RETURN_IF_ERROR(Synchronize());
  return arena;
}

absl::StatusOr<std::unique_ptr<Arena>> CudaDevice::CreateArena(int64_t arena_bytes, int64_t workspace_bytes) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Arena> arena, Allocate(arena_bytes, workspace_bytes, "the program's memory"));
  if (workspace_bytes > 0) {
    workspace_.SetWorkspace(arena->workspace().data(), static_cast<int64_t>(arena->workspace().size()), {compute_});
  }
  return arena;
}

absl::StatusOr<std::unique_ptr<Arena>> CudaDevice::AllocateDevice(int64_t num_bytes) {
  return Allocate(num_bytes, 0, "memory beside the program's");
}

absl::StatusOr<std::unique_ptr<Arena>> CudaDevice::AllocateHost(int64_t num_bytes) {
  const size_t total = static_cast<size_t>(Arena::TotalBytes(num_bytes, 0));
  void* data = nullptr;
  TACC_RETURN_IF_ERROR(CudaStatus(cudaHostAlloc(&data, total, cudaHostAllocDefault),
                                  absl::StrCat("pinned host memory of ", total, " bytes"), ordinal_));
  std::fill_n(static_cast<char*>(data), total, 0);
  return Arena::Adopt(static_cast<char*>(data), num_bytes, 0, [](char* memory) { (void)cudaFreeHost(memory); });
}

void CudaDevice::CopyOn(kernels::cuda::Stream stream, const Region& from, const Region& to) {
  const int64_t bytes = from.bytes();
  if (bytes == 0) return;
  if (from.IsContiguous() && to.IsContiguous()) {
    Keep(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(bytes), cudaMemcpyDefault, stream), "a copy");
    return;
  }
  // The dense side is cut as the other.
  const Region& cut = from.IsContiguous() ? to : from;
  const auto pitch = [&](const Region& region) {
    return static_cast<size_t>(region.IsContiguous() ? cut.run_bytes : region.stride_bytes);
  };
  Keep(cudaMemcpy2DAsync(to.data, pitch(to), from.data, pitch(from), static_cast<size_t>(cut.run_bytes),
                         static_cast<size_t>(cut.runs), cudaMemcpyDefault, stream),
       "a strided copy");
}

void CudaDevice::Copy(const Region& from, const Region& to) {
  if (from.bytes() == 0 || from.data == to.data) return;
  if (from.IsContiguous() && to.IsContiguous()) return CopyOn(compute_, from, to);
  try {
    kernels::cuda::CopyRuns(RunsOf(from), 0, RunsOf(to), 0, from.bytes());
  } catch (const std::exception& exception) {
    status_.Update(StatusOf(exception));
  }
}

void CudaDevice::Clear(const Region& region) {
  if (region.bytes() == 0) return;
  if (region.IsContiguous()) {
    Keep(cudaMemsetAsync(region.data, 0, static_cast<size_t>(region.bytes()), compute_), "clearing memory");
  } else {
    Keep(cudaMemset2DAsync(region.data, static_cast<size_t>(region.stride_bytes), 0,
                           static_cast<size_t>(region.run_bytes), static_cast<size_t>(region.runs), compute_),
         "clearing memory");
  }
}

void CudaDevice::Upload(const void* host, const Region& to) {
  CopyOn(compute_, Flat(const_cast<void*>(host), to.bytes()), to);
}

void CudaDevice::Download(const Region& from, void* host) { CopyOn(compute_, from, Flat(host, from.bytes())); }

void CudaDevice::Publish(uint32_t value, uint32_t* word) {
  try {
    kernels::cuda::PublishPlace(value, word);
  } catch (const std::exception& exception) {
    status_.Update(StatusOf(exception));
  }
}

void CudaDevice::UploadAhead(const void* host, const Region& to) {
  CopyOn(copy_, Flat(const_cast<void*>(host), to.bytes()), to);
  Keep(cudaEventRecord(copied_, copy_), "a mark");
  Keep(cudaStreamWaitEvent(compute_, copied_), "waiting for a copy");
}

absl::Status CudaDevice::Synchronize() { return Check(cudaStreamSynchronize(compute_), "the work on the GPU"); }

absl::Status CudaDevice::Check() { return Check(cudaStreamQuery(compute_), "the work on the GPU"); }

absl::Status CudaDevice::StatusOf(const std::exception& exception) const {
  return StatusOfException(exception, ordinal_);
}

std::optional<int64_t> CudaDevice::MemoryUsedBytes() {
  const std::optional<int64_t> free = FreeBytes();
  if (!free.has_value() || !free_at_open_.has_value() || *free > *free_at_open_) return std::nullopt;
  return *free_at_open_ - *free;
}

absl::StatusOr<std::unique_ptr<Device::Mark>> CudaDevice::CreateMarkIn(kernels::cuda::Stream stream) {
  cudaEvent_t event = nullptr;
  // Waiting for it leaves the host's cores to others.
  TACC_RETURN_IF_ERROR(Check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync), "an event"));
  return std::make_unique<EventMark>(this, event, stream);
}

// CUPTI's clock and that of marks meet in a memset right before the mark, the first piece of the trace.
absl::Status CudaDevice::StartActivity(Mark& origin) {
  constexpr int64_t kCleared = 4096;
  if (activity_begin_ == nullptr) {
    TACC_ASSIGN_OR_RETURN(activity_begin_, AllocateDevice(kCleared));
  }
  TACC_RETURN_IF_ERROR(Synchronize());
  TACC_RETURN_IF_ERROR(activity_.Start());
  Clear(Flat(activity_begin_->data(), kCleared));
  TACC_RETURN_IF_ERROR(origin.Set());
  return Synchronize();
}

absl::StatusOr<std::vector<TimeSpan>> CudaDevice::StopActivity() {
  TACC_RETURN_IF_ERROR(Synchronize());
  TACC_ASSIGN_OR_RETURN(const std::vector<GpuActivity::Piece> pieces, activity_.Stop());
  const auto first = std::min_element(pieces.begin(), pieces.end(),
                                      [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  if (first == pieces.end()) return absl::InternalError("CUPTI has seen nothing of the GPU's work");
  if (first->kind != GpuActivity::Piece::Kind::kMemset)
    return absl::InternalError("CUPTI has not seen the beginning of the trace");
  std::vector<TimeSpan> spans;
  for (auto piece = pieces.begin(); piece != pieces.end(); ++piece) {
    if (piece == first) continue;
    spans.push_back({1e-9 * static_cast<double>(piece->begin_ns - first->end_ns),
                     1e-9 * static_cast<double>(piece->end_ns - first->end_ns)});
  }
  return spans;
}

absl::StatusOr<std::unique_ptr<Device::Recording>> CudaDevice::Record(const std::function<absl::Status()>& queue) {
  TACC_RETURN_IF_ERROR(
      Check(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeThreadLocal), "beginning to record"));
  absl::Status status = queue();
  cudaGraph_t graph = nullptr;
  // Ends also what has failed.
  const cudaError_t ended = cudaStreamEndCapture(compute_, &graph);
  status.Update(CudaStatus(ended, "recording", ordinal_));
  cudaGraphExec_t executable = nullptr;
  // A collective's kernels go before others as on their own stream, not as on the one that the graph is queued on.
  if (status.ok()) {
    status = CudaStatus(cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagUseNodePriority),
                        "making a graph", ordinal_);
  }
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
  // What could not be recorded is said here, not by the next launch that looks.
  if (!status.ok()) (void)cudaGetLastError();
  TACC_RETURN_IF_ERROR(status);
  return std::make_unique<GraphRecording>(this, executable);
}

}  // namespace tacc::worker
