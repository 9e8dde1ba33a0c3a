// The entry of libtacc_cuda.so.
#include <memory>

#include "worker/rank/cuda/cuda_device.h"
#include "worker/rank/cuda/probe.h"
#include "worker/rank/gpu_module.h"

namespace tacc::worker {
namespace {

class Module : public GpuModule {
 public:
  absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal, const GpuOptions& options) override {
    return CudaDevice::Open(ordinal, options);
  }
  absl::StatusOr<std::string> Probe(int ordinal) override { return ProbeCudaDevice(ordinal); }
  absl::StatusOr<std::string> Look(int ordinal) override { return LookAtCudaDevice(ordinal); }
  std::string List() override { return CudaDevices(); }
};

}  // namespace
}  // namespace tacc::worker

extern "C" __attribute__((visibility("default"))) tacc::worker::GpuModule* tacc_gpu_module() {
  static tacc::worker::Module module;
  return &module;
}
