// The entry of libtacc_cuda.so.
#include <memory>

#include "absl/status/status.h"
#include "worker/rank/cuda/collectives/choose_collectives.h"
#include "worker/rank/cuda/collectives/nccl_messages.h"
#include "worker/rank/cuda/cuda_device.h"
#include "worker/rank/cuda/tuning/probe.h"
#include "worker/rank/gpu/gpu_module.h"

namespace tacc::worker {
namespace {

class Module : public GpuModule {
 public:
  absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal, const GpuOptions& options) override {
    absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Open(ordinal, options);
    if (device.ok()) device_ = device->get();
    return device;
  }
  absl::StatusOr<RankTalk> ChooseTalk(const RankTalkOptions& options) override {
    if (device_ == nullptr) return absl::FailedPreconditionError("no GPU has been opened");
    RankGpu gpu;
    gpu.device = device_;
    gpu.id = [this] { return GpuIdOf(device_->ordinal()); };
    gpu.make_communication = [this, &options] {
      NcclOptions nccl;
      nccl.gpu = device_->ordinal();
      nccl.device = device_;
      nccl.compute = device_->compute();
      nccl.create_timed_mark = [this](kernels::cuda::Stream stream) { return device_->CreateMarkIn(stream); };
      nccl.host = options.host;
      nccl.timeout = options.timeout;
      nccl.status = options.status;
      return CreateNcclCommunication(nccl);
    };
    return ChooseCollectives(options, gpu);
  }
  absl::StatusOr<std::string> Probe(int ordinal) override { return ProbeCudaDevice(ordinal); }
  absl::StatusOr<std::string> Look(int ordinal) override { return LookAtCudaDevice(ordinal); }
  std::string List() override { return CudaDevices(); }

 private:
  CudaDevice* device_ = nullptr;
};

}  // namespace
}  // namespace tacc::worker

extern "C" __attribute__((visibility("default"))) tacc::worker::GpuModule* tacc_gpu_module() {
  static tacc::worker::Module module;
  return &module;
}
