#ifndef TACC_WORKER_RANK_CUDA_DEVICE_EXCEPTIONS_H_
#define TACC_WORKER_RANK_CUDA_DEVICE_EXCEPTIONS_H_

#include <exception>

#include "absl/status/status.h"

namespace tacc::worker {

// What an exception of LibTorch, or of a launch of ours, says of `device`: a status as of CudaStatus where an error of
// CUDA is behind it, ResourceExhausted where the workspace was too small, else Internal. LibTorch's text without the
// stack that follows it. Takes CUDA's error off this thread, as CudaStatus.
absl::Status StatusOfException(const std::exception& exception, int device);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_DEVICE_EXCEPTIONS_H_
