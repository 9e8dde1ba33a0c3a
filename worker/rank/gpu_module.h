#ifndef TACC_WORKER_RANK_GPU_MODULE_H_
#define TACC_WORKER_RANK_GPU_MODULE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/device.h"

namespace tacc::worker {

// What a job asks of a GPU's arithmetic.
struct GpuOptions {
  enum class Tf32 { kOff, kOn };               // products of f32
  enum class Determinism { kAny, kRequired };  // of LibTorch's kernels; ours are
  Tf32 tf32 = Tf32::kOff;
  Determinism determinism = Determinism::kAny;
};

// libtacc_cuda.so: all of a rank that needs CUDA. A rank on a CPU never loads it.
class GpuModule {
 public:
  virtual ~GpuModule() = default;
  // The GPU as a rank's device. Once a process. Errors: worker/rank/cuda/errors.h.
  virtual absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal, const GpuOptions& options) = 0;
  // JSON of docs/contracts.md. Errors: NotFound: the machine has no such GPU; FailedPrecondition: no driver that is new
  // enough; else the GPU does not work.
  virtual absl::StatusOr<std::string> Probe(int ordinal) = 0;
  virtual absl::StatusOr<std::string> Look(int ordinal) = 0;
  virtual std::string List() = 0;
};

// Loads the module that lies beside this binary, for as long as the process lives; LibTorch's CUDA part comes with it.
// NotFound: there is none, or not all that it needs; says what to do.
absl::StatusOr<GpuModule*> LoadGpuModule();

// Whether this machine has NVIDIA's driver: without it there is no GPU to ask the module about, which takes a second to
// load.
bool HasGpuDriver();

// "cuda:3" -> 3; -1 for "cpu".
int GpuOrdinal(const std::string& device);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_GPU_MODULE_H_
