#include "worker/daemon/supervision/rank_process.h"

#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace tacc::worker {

std::string ProcessText(pid_t pid) {
  std::ifstream stream(absl::StrCat("/proc/", pid, "/stat"));
  const std::string stat{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  // The name before it may hold anything.
  const size_t name_end = stat.rfind(") ");
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return absl::StrCat("pid ", pid);
  const char state = stat[name_end + 2];
  const char* const meaning = state == 'D'   ? " (uninterruptible sleep: in a driver or a file system)"
                              : state == 'Z' ? " (ended, held by another process)"
                                             : "";
  return absl::StrCat("pid ", pid, ", state ", std::string(1, state), meaning);
}

}  // namespace tacc::worker
