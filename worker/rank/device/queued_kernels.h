#ifndef TACC_WORKER_RANK_DEVICE_QUEUED_KERNELS_H_
#define TACC_WORKER_RANK_DEVICE_QUEUED_KERNELS_H_

#include <functional>
#include <utility>

#include "graph/ir/status_macros.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// The kernels of a device on which nothing is done when it is called: each call of one goes to `queue`.
class QueuedKernels : public KernelTable {
 public:
  using Queue = std::function<void(Kernel kernel)>;

  // `kernels`, which do the work, must outlive the object.
  QueuedKernels(const KernelTable* kernels, Queue queue) : kernels_(*kernels), queue_(std::move(queue)) {}

  absl::StatusOr<Kernel> Prepare(const KernelRequest& request) const override {
    TACC_ASSIGN_OR_RETURN(Kernel kernel, kernels_.Prepare(request));
    return Queued(std::move(kernel));
  }
  absl::StatusOr<Joint> PrepareFirst(absl::Span<const KernelRequest> requests,
                                     const KeepOnDevice& keep) const override {
    TACC_ASSIGN_OR_RETURN(Joint joint, kernels_.PrepareFirst(requests, keep));
    return Joint{Queued(std::move(joint.kernel)), joint.num_nodes};
  }

 private:
  Kernel Queued(Kernel kernel) const {
    return [queue = queue_, kernel = std::move(kernel)] { queue(kernel); };
  }

  const KernelTable& kernels_;
  const Queue queue_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_QUEUED_KERNELS_H_
