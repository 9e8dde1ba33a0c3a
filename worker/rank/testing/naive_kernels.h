#ifndef TACC_WORKER_RANK_TESTING_NAIVE_KERNELS_H_
#define TACC_WORKER_RANK_TESTING_NAIVE_KERNELS_H_

#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// A few f32 ops, one loop each, for tests of the executor without LibTorch: einsum, add, sub, mul (same dims, or b a
// scalar), scale, reduce_sum over all dims, constant.
class NaiveKernels : public KernelTable {
 public:
  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TESTING_NAIVE_KERNELS_H_
