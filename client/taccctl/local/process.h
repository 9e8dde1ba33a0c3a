// Processes as taccctl starts them: in groups of their own, so that Ctrl-C reaches only taccctl.
#ifndef TACC_CLIENT_TACCCTL_LOCAL_PROCESS_H_
#define TACC_CLIENT_TACCCTL_LOCAL_PROCESS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/session/interrupt.h"
#include "process/child_process.h"
#include "process/run_program.h"

namespace tacc::client {

// ChildProcess::Start. Internal, in words for a user, when it cannot be started.
absl::StatusOr<std::unique_ptr<ChildProcess>> StartDaemon(const ProcessOptions& options);

// The first line of the child's stdout without its newline. DeadlineExceeded after `seconds`; Unavailable when the
// child closed stdout before; Cancelled when `interrupt` (may be null) is raised meanwhile. Called once for a child.
absl::StatusOr<std::string> ReadLine(ChildProcess* child, double seconds, const Interrupt* interrupt);

// Runs a program to its end, with an empty stdin. Errors: Internal when it cannot be started or prints more than
// `max_bytes`; it is killed after `seconds` (DeadlineExceeded), and when `interrupt` is raised meanwhile (Cancelled).
absl::StatusOr<ProgramResult> RunProgram(const std::string& binary, const std::vector<std::string>& arguments,
                                         double seconds, size_t max_bytes, Interrupt* interrupt);

// Lines at the end of a file, at most `count`.
std::vector<std::string> LastLines(const std::string& path, size_t count);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_LOCAL_PROCESS_H_
