// What `taccctl up` started, as `down` and the other commands find it.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/taccctl/context.h"

namespace tacc::client {

struct UpProcess {
  std::string name;
  pid_t pid = 0;
  // Start time of the process in clock ticks since boot, which tells it from a later process with the same number.
  uint64_t start_ticks = 0;
};

struct UpState {
  std::string address;
  std::vector<UpProcess> processes;
};

// $XDG_STATE_HOME/tacc/up, or ~/.local/state/tacc/up.
std::string UpDirectory(const Context& context);

// NotFound when nothing was started; InvalidArgument when the file is damaged.
absl::StatusOr<UpState> ReadUpState(const std::string& directory);

// Written to a new file and renamed.
absl::Status WriteUpState(const std::string& directory, const UpState& state);

// The process as it runs now; start_ticks 0 when there is none.
UpProcess LookAtProcess(const std::string& name, pid_t pid);

// Whether it still runs (a zombie does not).
bool IsRunning(const UpProcess& process);

}  // namespace tacc::client
