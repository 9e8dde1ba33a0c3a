// Kernels that are LibTorch's operators, called by name.
#ifndef TACC_WORKER_RANK_PROGRAM_BIND_ATEN_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_ATEN_H_

#include <map>
#include <string>

#include "worker/rank/program/binding.h"

namespace tacc::worker {

// The ops aten, aten_vjp, and those for which LibTorch's operators are as good as kernels of our own.
const std::map<std::string, PrepareKernel>& AtenKernels();

// y = a where cond, else b, of a cond with dims.
absl::StatusOr<Kernel> Where(const Binding& b);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_ATEN_H_
