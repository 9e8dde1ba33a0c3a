#ifndef TACC_WORKER_RANK_CUDA_GPU_ACTIVITY_H_
#define TACC_WORKER_RANK_CUDA_GPU_ACTIVITY_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

// When this process's GPU works, as CUPTI sees it: each kernel, copy and memset of all streams, those of replayed
// graphs too. CUPTI stays attached to the process from the first Start on, for to detach it from one with CUDA graphs
// has crashed, or left it blind; while nothing is noted, what remains is some host time for each call of CUDA, of which
// a replayed step has few. Its buffers for times are host memory, so that it takes nothing of the GPU's. One object a
// process at most works at a time.
//
// CUPTI is used directly, not by way of LibTorch's profiler (kineto): that keeps errors to itself, drops what lies at
// the ends of its own window, and detaches CUPTI after each trace.
class GpuActivity {
 public:
  struct Piece {
    enum class Kind { kKernel, kCopy, kMemset };
    Kind kind = Kind::kKernel;
    int64_t begin_ns = 0, end_ns = 0;  // as CUPTI counts
  };

  // From here on; the GPU has nothing to do. Errors: what CUPTI says, such as that another tool has taken it.
  absl::Status Start();
  // To here; the GPU has nothing to do again. All that ran in between, in any order. Internal: CUPTI has lost some.
  absl::StatusOr<std::vector<Piece>> Stop();
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_GPU_ACTIVITY_H_
