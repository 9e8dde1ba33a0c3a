#include "worker/daemon/machine_limits.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tacc::worker {
namespace {

std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Returns the value of a "Key:  value" line, stripped; empty when there is none.
std::string LineValue(const std::string& text, const std::string& key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == key) return std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return "";
}

// The cgroup v2 folders of this process, innermost first. Inside a container's cgroup namespace the path is "/", and
// the mount's root holds the container's limits.
std::vector<std::string> CgroupFolders(const std::string& root) {
  const std::string mount = absl::StrCat(root, "/sys/fs/cgroup");
  std::string path;
  for (absl::string_view line : absl::StrSplit(Read(absl::StrCat(root, "/proc/self/cgroup")), '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) path = std::string(line);
  }
  std::vector<std::string> folders;
  while (!path.empty() && path != "/") {
    folders.push_back(absl::StrCat(mount, path));
    path.resize(path.rfind('/'));
  }
  folders.push_back(mount);
  return folders;
}

}  // namespace

int AffinityCpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return std::max(1, CPU_COUNT(&cpus));
}

MachineLimits ReadMachineLimits(const std::string& root, int affinity_cpus) {
  MachineLimits limits;
  limits.num_cpus = std::max(1, affinity_cpus);
  int64_t kibibytes = 0;
  const std::string total = LineValue(Read(absl::StrCat(root, "/proc/meminfo")), "MemTotal");
  if (absl::SimpleAtoi(absl::StripSuffix(total, " kB"), &kibibytes)) limits.memory_bytes = kibibytes * 1024;
  for (const std::string& folder : CgroupFolders(root)) {
    const std::string cpu_max = Read(absl::StrCat(folder, "/cpu.max"));  // "max 100000" or "150000 100000".
    const std::vector<std::string> quota = absl::StrSplit(absl::StripAsciiWhitespace(cpu_max), ' ');
    double used = 0, period = 0;
    if (quota.size() == 2 && absl::SimpleAtod(quota[0], &used) && absl::SimpleAtod(quota[1], &period) && period > 0) {
      limits.num_cpus = std::min(limits.num_cpus, std::max(1, static_cast<int>(used / period)));
    }
    int64_t bytes = 0;
    const std::string memory_max = Read(absl::StrCat(folder, "/memory.max"));  // "max" or bytes.
    if (absl::SimpleAtoi(memory_max, &bytes) && bytes > 0 &&
        (limits.memory_bytes == 0 || bytes < limits.memory_bytes)) {
      limits.memory_bytes = bytes;
    }
  }
  return limits;
}

std::string CpuModel(const std::string& root) {
  const std::string model = LineValue(Read(absl::StrCat(root, "/proc/cpuinfo")), "model name");
  return model.empty() ? "unknown CPU" : model;
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  static const std::map<std::string, double>* const kUnits = new std::map<std::string, double>{
      {"", 1},      {"B", 1},        {"KB", 1e3},     {"MB", 1e6},     {"GB", 1e9},
      {"TB", 1e12}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}};
  const size_t unit_at = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, unit_at);
  const std::string unit =
      unit_at == std::string::npos ? "" : std::string(absl::StripLeadingAsciiWhitespace(text.substr(unit_at)));
  double value = 0;
  const auto it = kUnits->find(unit);
  if (it == kUnits->end() || !absl::SimpleAtod(number, &value) || !(value * it->second < 0x1p62)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a size; write for example 4GiB, 512MiB or 8000000000"));
  }
  return static_cast<int64_t>(value * it->second);
}

}  // namespace tacc::worker
