#include "client/taccctl/local/share_out.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "client/taccctl/local/devices.h"

namespace tacc::client {

WorkerShare ShareOut(const LocalMachine& machine, int num_workers) {
  WorkerShare share;
  share.threads = std::max(1, machine.num_cpus / num_workers);
  share.memory_bytes = machine.available_memory_bytes / 10 * 9 / num_workers;
  return share;
}

absl::StatusOr<WorkerShare> ShareFor(const LocalMachine& machine, const std::vector<std::string>& devices, int threads,
                                     const std::string& memory) {
  WorkerShare share = ShareOut(machine, static_cast<int>(devices.size()));
  if (devices.front() != kCpuDevice) share.memory_bytes = 0;
  if (threads > 0) share.threads = threads;
  if (!memory.empty()) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(memory);
    if (!bytes.ok()) return absl::InvalidArgumentError(absl::StrCat("--memory: ", bytes.status().message()));
    share.memory_bytes = *bytes;
  }
  return share;
}

std::string TurnsWarning(const LocalMachine& machine, int num_workers, int threads, const std::string& lower) {
  const int64_t wanted = int64_t{num_workers} * threads;
  if (wanted <= machine.num_cpus) return "";
  const auto count = [](int n, const char* what) { return absl::StrCat(n, " ", what, n == 1 ? "" : "s"); };
  return absl::StrCat("warning: ", num_workers, " workers of ", count(threads, "thread"), " share ",
                      count(machine.num_cpus, "CPU"), " and take turns, so they are no faster than ",
                      count(machine.num_cpus, "thread"), "; lower ", lower, ", unless you only try a layout");
}

}  // namespace tacc::client
