// Runs a program to its end, with limits on time, memory and output.
#ifndef TACC_PROCESS_RUN_PROGRAM_H_
#define TACC_PROCESS_RUN_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "process/child_process.h"

namespace tacc {

struct RunLimits {
  double seconds = 120;  // Of wall time.
  // Address space. The kernel then also limits CPU time to `seconds`, for the case that this process is killed and
  // watches no clock any more, and writes no core. 0: none of the three.
  int64_t memory_bytes = 0;
  size_t output_bytes = 16 << 20;  // Of stdout; of stderr the last 64 KiB are kept.
};

struct ProgramResult {
  ProcessEnd end;
  bool timed_out = false;
  bool cancelled = false;
  bool output_too_long = false;
  bool out_of_memory = false;  // It ended because memory was refused to it, which is what the limit does.
  std::string out;
  std::string err;
  double seconds = 0;
};

// Blocks until the program is reaped. Its process group is killed when a limit is passed, or `is_cancelled`, which is
// asked every 20 ms, returns true. NotFound, PermissionDenied or Internal: it cannot be started.
absl::StatusOr<ProgramResult> RunProgram(const ProcessOptions& options, const RunLimits& limits,
                                         const std::function<bool()>& is_cancelled);

}  // namespace tacc

#endif  // TACC_PROCESS_RUN_PROGRAM_H_
