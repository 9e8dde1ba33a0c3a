#include "client/taccctl/session/exit_code.h"

namespace tacc::client {

int ExitCodeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return kExitOk;
    case absl::StatusCode::kInvalidArgument:
      return kExitBadInput;
    case absl::StatusCode::kNotFound:
      return kExitNotFound;
    case absl::StatusCode::kUnavailable:
      return kExitUnreachable;
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAborted:
      return kExitConflict;
    case absl::StatusCode::kDeadlineExceeded:
      return kExitTimedOut;
    default:
      return kExitError;
  }
}

int OutcomeOf(const v1::Job& job) {
  switch (job.phase()) {
    case v1::PHASE_FINISHED:
      return kExitOk;
    case v1::PHASE_CANCELLED:
      return job.failure_code() == v1::FAILURE_CODE_CHECKPOINT ? kExitJobFailed : kExitJobCancelled;
    case v1::PHASE_FAILED:
      return job.failure_code() == v1::FAILURE_CODE_BAD_INPUT ? kExitBadInput : kExitJobFailed;
    default:
      return kExitError;
  }
}

bool HasEnded(v1::Phase phase) {
  return phase == v1::PHASE_FINISHED || phase == v1::PHASE_FAILED || phase == v1::PHASE_CANCELLED;
}

}  // namespace tacc::client
