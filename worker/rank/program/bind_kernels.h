// Which kernel computes each op: the table of ops, for every device whose kernels fill kernels/contract.
#ifndef TACC_WORKER_RANK_PROGRAM_BIND_KERNELS_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_KERNELS_H_

#include <string>
#include <vector>

#include "kernels/contract/kernels.h"
#include "worker/rank/device/kernel_table.h"

namespace tacc::worker {

// Binds the request's node to its kernel in `kernels`, which outlive the call that is returned. Missing in_ranges and
// out_ranges mean whole, unpadded tensors. Errors: Unimplemented for an op without a kernel; InvalidArgument for
// operands that the op's kernel cannot take (the graph's type inference refuses them before), naming op, got and
// wanted.
absl::StatusOr<Kernel> BindKernel(const kernels::Kernels& kernels, const KernelRequest& request);

// The ops that have a kernel, sorted.
std::vector<std::string> BoundOps();

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_KERNELS_H_
