// What the library for GPUs gives to tacc-rank, which loads it where a job asks for a GPU.
#ifndef TACC_WORKER_RANK_GPU_GPU_MODULE_H_
#define TACC_WORKER_RANK_GPU_GPU_MODULE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/device.h"
#include "worker/rank/device/measured_products.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {

// What a job asks of a GPU's arithmetic, and knows of it.
struct GpuOptions {
  enum class Tf32 { kOff, kOn };               // products of f32
  enum class Determinism { kAny, kRequired };  // of LibTorch's kernels; ours are
  Tf32 tf32 = Tf32::kOff;
  Determinism determinism = Determinism::kAny;
  EarlierProducts products;  // What needs no measuring.
};

struct RankTalkOptions {
  Collectives* host = nullptr;    // Connected; must outlive the talk.
  absl::Duration timeout;         // Of connecting, and of each collective or message on the GPU.
  StatusBlock* status = nullptr;  // Shows where the GPU is; may be null.
  // Sums in one order, whatever time, network and library do; slower. The same on all ranks.
  bool deterministic = false;
  // For a check of NCCL alone: ranks run on one GPU and have told it that they are of different hosts (NCCL_HOSTID).
  bool may_share_gpu = false;
};

// How the ranks of an attempt talk about values in the memory of their GPUs.
struct RankTalk {
  // For the executor, which must end before it; after Executor::Create all ranks call its Open.
  std::unique_ptr<CollectiveQueue> queue;
  std::string detour;  // Why it goes by way of the host; empty: it does not.
};

// libtacc_cuda.so: all of a rank that needs CUDA. A rank on a CPU never loads it.
class GpuModule {
 public:
  virtual ~GpuModule() = default;
  // The GPU as a rank's device. Once a process. Errors: worker/rank/cuda/device/errors.h.
  virtual absl::StatusOr<std::unique_ptr<Device>> Open(int ordinal, const GpuOptions& options) = 0;
  // Of the device that has been opened, which must outlive the talk. All ranks of a world of several call it, and get
  // talks of one kind or the same error.
  virtual absl::StatusOr<RankTalk> ChooseTalk(const RankTalkOptions& options) = 0;
  // JSON of docs/contracts.md. Errors: NotFound: the machine has no such GPU; FailedPrecondition: no driver that is new
  // enough; else the GPU does not work.
  virtual absl::StatusOr<std::string> Probe(int ordinal) = 0;
  virtual absl::StatusOr<std::string> Look(int ordinal) = 0;
  virtual std::string List() = 0;
};

// Loads the module that lies beside this binary, for as long as the process lives; LibTorch's CUDA part comes with it.
// Sets what CUDA reads in the environment when it starts (CUDA_DEVICE_MAX_CONNECTIONS). NotFound: there is none, or not
// all that it needs; says what to do.
absl::StatusOr<GpuModule*> LoadGpuModule();

// Whether this machine has NVIDIA's driver: without it there is no GPU to ask the module about, which takes a second to
// load.
bool HasGpuDriver();

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_GPU_GPU_MODULE_H_
