#ifndef TACC_WORKER_RANK_CUDA_DEVICE_ERRORS_H_
#define TACC_WORKER_RANK_CUDA_DEVICE_ERRORS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tacc::worker {

// What an error of the CUDA runtime means for the rank that met it.
enum class CudaFault {
  kNone,
  kOutOfMemory,  // Nothing is broken: the call may be tried again with less.
  kSticky,       // This process's context is lost, each later call fails alike: the rank ends, the GPU stays usable.
  kLostDevice,   // The GPU itself is gone or must be reset: no rank can start on it.
  kNoDriver,     // There is no driver, or one that is too old: nothing runs on any GPU of this machine.
  kOther,        // The call failed and changed nothing.
};

// Of a cudaError_t.
CudaFault FaultOf(int cuda_error);

// Ok for cudaSuccess; else what was being done (`what`), on which device, CUDA's name and text for the error, and what
// to do. Takes the error off this thread, where the next launch would find it; what a lost context leaves stays. Codes:
// ResourceExhausted (kOutOfMemory), Aborted (kSticky), Unavailable (kLostDevice), FailedPrecondition (kNoDriver),
// Internal (kOther).
absl::Status CudaStatus(int cuda_error, absl::string_view what, int device);

// The inverse, for a status of CudaStatus.
CudaFault FaultOf(const absl::Status& status);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_DEVICE_ERRORS_H_
