// Backends of attention as they were measured, and which was chosen.
#ifndef TACC_WORKER_RANK_DEVICE_MEASURED_ATTENTION_H_
#define TACC_WORKER_RANK_DEVICE_MEASURED_ATTENTION_H_

#include <cstdint>
#include <string>
#include <vector>

namespace tacc::worker {

// How one backend did.
struct AttentionTiming {
  std::string backend;  // "tiles", "tensor", "flash", "cudnn" (kernels/cuda/libtorch_attention.h)
  double forward_seconds = 0, backward_seconds = 0;  // 0: not measured
  std::string refused;                               // why it is not used; empty if it may be
  bool failed = false;          // It should have worked: `refused` says what went wrong, not what it does not take.
  int64_t workspace_bytes = 0;  // The most that it took of the plan's workspace, of the whole operands; 0: not measured
};

// Attention of one shape on a device.
struct AttentionChoice {
  std::string shape;    // dtype, dims, mask and scale, for people too
  std::string backend;  // who computes it; empty until the ranks have agreed
  // Those that are preferred where results must be the same each time last.
  std::vector<AttentionTiming> timings;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_MEASURED_ATTENTION_H_
