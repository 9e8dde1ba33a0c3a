// The codes of `failed` events (docs/contracts.md).
#ifndef TACC_WORKER_RANK_FAILURE_CODES_H_
#define TACC_WORKER_RANK_FAILURE_CODES_H_

#include <string>

#include "absl/status/status.h"
#include "worker/rank/run.h"

namespace tacc::worker {

// Exit code of a `failed` event's code.
inline int ExitCode(const std::string& code) {
  if (code == "bad_input") return kExitBadInput;
  return code == "nonfinite" ? kExitNonfinite : kExitError;
}

// The code for a status of the loop.
inline const char* CodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return "collective";
    case absl::StatusCode::kResourceExhausted:
      return "memory";
    default:
      return "internal";
  }
}

// The same while loading, where what does not fit is the input's fault.
inline const char* LoadCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
      return "bad_input";
    default:
      return CodeOf(status);
  }
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_FAILURE_CODES_H_
