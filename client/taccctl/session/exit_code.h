// Exit codes of taccctl beside those of all programs. Scripts rely on them.
#ifndef TACC_CLIENT_TACCCTL_SESSION_EXIT_CODE_H_
#define TACC_CLIENT_TACCCTL_SESSION_EXIT_CODE_H_

#include "absl/status/status.h"
#include "machine/exit_code.h"
#include "tacc/v1/coordinator.pb.h"

namespace tacc::client {

inline constexpr int kExitNotFound = 3;
inline constexpr int kExitUnreachable = 5;
inline constexpr int kExitConflict = 6;
inline constexpr int kExitTimedOut = 7;
inline constexpr int kExitJobFailed = 100;
inline constexpr int kExitJobCancelled = 101;

// The exit code for an error, or kExitOk.
int ExitCodeOf(const absl::Status& status);

// The exit code of a command that followed a job to its end. kExitError for a job that has not ended.
int OutcomeOf(const v1::Job& job);

// Whether the job has ended.
bool HasEnded(v1::Phase phase);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_SESSION_EXIT_CODE_H_
