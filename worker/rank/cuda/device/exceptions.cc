#include "worker/rank/cuda/device/exceptions.h"

#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "worker/rank/cuda/device/errors.h"

namespace tacc::worker {

absl::Status StatusOfException(const std::exception& exception, int device) {
  // An error that corrupted the context is still the last one.
  const cudaError_t last = cudaGetLastError();
  std::string what;
  if (const auto* error = dynamic_cast<const c10::Error*>(&exception)) {
    what = error->what_without_backtrace();
  } else {
    what = exception.what();
  }
  while (!what.empty() && what.back() == '\n') what.pop_back();
  if (const auto* error = dynamic_cast<const c10::AcceleratorError*>(&exception)) {
    // LibTorch's advice on debugging follows the first line.
    return CudaStatus(error->get_error_code(), what.substr(0, what.find('\n')), device);
  }
  if (dynamic_cast<const c10::OutOfMemoryError*>(&exception) != nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("cuda:", device, ": ", what));
  // Where there is none the exception is of another kind.
  absl::Status status = CudaStatus(last, what, device);
  return status.ok() ? absl::InternalError(absl::StrCat("cuda:", device, ": ", what)) : status;
}

}  // namespace tacc::worker
