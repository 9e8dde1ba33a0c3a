// The kernels of ops of images and their channels, for bind_kernels.h.
#ifndef TACC_WORKER_RANK_PROGRAM_BIND_IMAGE_KERNELS_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_IMAGE_KERNELS_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "worker/rank/program/binding.h"

namespace tacc::worker {

using PrepareKernel = absl::StatusOr<Kernel> (*)(const Binding&);

// `kernels`, by op, and those of images.
std::map<std::string, PrepareKernel> WithImageKernels(std::map<std::string, PrepareKernel> kernels);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_IMAGE_KERNELS_H_
