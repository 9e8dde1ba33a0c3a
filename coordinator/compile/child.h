// Runs a program to its end, with limits on time, memory and output.
#ifndef TACC_COORDINATOR_COMPILE_CHILD_H_
#define TACC_COORDINATOR_COMPILE_CHILD_H_

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tacc::coordinator {

struct ChildLimits {
  double seconds = 120;                     // Of wall time and of CPU time.
  int64_t memory_bytes = int64_t{8} << 30;  // Address space.
  size_t output_bytes = 16 << 20;           // Of stdout; of stderr the last 64 KiB are kept.
};

struct ChildResult {
  int exit_code = -1;  // -1: ended by a signal.
  int signal = 0;
  bool timed_out = false;
  bool cancelled = false;
  bool output_too_long = false;
  bool out_of_memory = false;  // It ended because memory was refused to it, which is what the limit does.
  std::string out;
  std::string err;
  double seconds = 0;
};

// `arguments[0]` is the path of the program. Blocks until the child is reaped; when `*cancel` becomes true or a limit
// is passed its process group is killed. NotFound: the program cannot be started.
absl::StatusOr<ChildResult> RunChild(const std::vector<std::string>& arguments, const ChildLimits& limits,
                                     const std::atomic<bool>& cancel);

}  // namespace tacc::coordinator

#endif  // TACC_COORDINATOR_COMPILE_CHILD_H_
