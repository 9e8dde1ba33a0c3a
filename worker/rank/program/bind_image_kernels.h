// The kernels of ops of images and their channels, for bind_kernels.h.
#ifndef TACC_WORKER_RANK_PROGRAM_BIND_IMAGE_KERNELS_H_
#define TACC_WORKER_RANK_PROGRAM_BIND_IMAGE_KERNELS_H_

#include <map>
#include <string>

#include "worker/rank/program/binding.h"

namespace tacc::worker {

// By op.
const std::map<std::string, PrepareKernel>& ImageKernels();

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROGRAM_BIND_IMAGE_KERNELS_H_
