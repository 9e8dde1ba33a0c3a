#include "machine/machine.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tacc {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream stream(path);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

// The number in a file that holds one, or -1 ("max", missing).
int64_t ReadNumber(const std::string& path) {
  int64_t number = -1;
  return absl::SimpleAtoi(absl::StripAsciiWhitespace(ReadAll(path)), &number) ? number : -1;
}

// Folders from `path` up to the hierarchy's root, in `mount`. A limit anywhere on the way counts.
std::vector<std::string> Ancestors(const std::string& mount, std::string path) {
  std::vector<std::string> folders;
  while (true) {
    folders.push_back(mount + path);
    if (path.empty() || path == "/") return folders;
    path.resize(path.rfind('/'));
  }
}

struct Limits {
  double cpus = std::numeric_limits<double>::infinity();
  int64_t memory_bytes = std::numeric_limits<int64_t>::max();
  int64_t available_memory_bytes = std::numeric_limits<int64_t>::max();

  void TakeCpus(double quota, double period) {
    if (quota > 0 && period > 0) cpus = std::min(cpus, quota / period);
  }
  void TakeMemory(int64_t limit, int64_t used) {
    if (limit < 0) return;
    memory_bytes = std::min(memory_bytes, limit);
    available_memory_bytes = std::min(available_memory_bytes, std::max<int64_t>(0, limit - std::max<int64_t>(0, used)));
  }
};

// Used memory less the page cache, which is given back under pressure.
int64_t UsedV2(const std::string& folder) {
  int64_t cache = 0;
  for (absl::string_view line : absl::StrSplit(ReadAll(folder + "/memory.stat"), '\n')) {
    if (absl::ConsumePrefix(&line, "inactive_file ")) (void)absl::SimpleAtoi(line, &cache);
  }
  return ReadNumber(folder + "/memory.current") - cache;
}

Limits CgroupLimits(const std::string& root) {
  Limits limits;
  const std::string mount = root + "sys/fs/cgroup";
  for (const absl::string_view line : absl::StrSplit(ReadAll(root + "proc/self/cgroup"), '\n', absl::SkipEmpty())) {
    // HIERARCHY:CONTROLLERS:PATH; version 2 has no controllers.
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (parts[1].empty()) {
      for (const std::string& folder : Ancestors(mount, parts[2])) {
        const std::vector<std::string> quota =
            absl::StrSplit(absl::StripAsciiWhitespace(ReadAll(folder + "/cpu.max")), ' ');
        double value = 0, period = 0;
        if (quota.size() == 2 && absl::SimpleAtod(quota[0], &value) && absl::SimpleAtod(quota[1], &period))
          limits.TakeCpus(value, period);
        limits.TakeMemory(ReadNumber(folder + "/memory.max"), UsedV2(folder));
      }
      continue;
    }
    for (const absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "cpu") {
        for (const std::string& folder : Ancestors(mount + "/cpu", parts[2])) {
          limits.TakeCpus(static_cast<double>(ReadNumber(folder + "/cpu.cfs_quota_us")),
                          static_cast<double>(ReadNumber(folder + "/cpu.cfs_period_us")));
        }
      } else if (controller == "memory") {
        for (const std::string& folder : Ancestors(mount + "/memory", parts[2])) {
          limits.TakeMemory(ReadNumber(folder + "/memory.limit_in_bytes"),
                            ReadNumber(folder + "/memory.usage_in_bytes"));
        }
      }
    }
  }
  return limits;
}

// The value of a "key : value" line of a file in /proc; empty when there is none.
std::string ProcValue(const std::string& path, const std::string& key) {
  for (const absl::string_view line : absl::StrSplit(ReadAll(path), '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (absl::StripAsciiWhitespace(parts.first) == key) return std::string(absl::StripAsciiWhitespace(parts.second));
  }
  return "";
}

// The same where it is a number of KiB; 0 when there is none.
int64_t ProcBytes(const std::string& path, const std::string& key) {
  const std::string value = ProcValue(path, key);
  int64_t kib = 0;
  return absl::SimpleAtoi(absl::StripSuffix(value, " kB"), &kib) ? kib * 1024 : 0;
}

}  // namespace

LocalMachine LookAtMachine(const std::string& root, int affinity_cpus) {
  const Limits limits = CgroupLimits(root);
  LocalMachine machine;
  if (std::string model = ProcValue(root + "proc/cpuinfo", "model name"); !model.empty())
    machine.cpu_model = std::move(model);
  machine.num_cpus = std::max(1, static_cast<int>(std::min<double>(affinity_cpus, limits.cpus)));
  machine.memory_bytes = std::min(ProcBytes(root + "proc/meminfo", "MemTotal"), limits.memory_bytes);
  machine.available_memory_bytes =
      std::min(ProcBytes(root + "proc/meminfo", "MemAvailable"), limits.available_memory_bytes);
  return machine;
}

LocalMachine ThisMachine() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  const int count = sched_getaffinity(0, sizeof(cpus), &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
  return LookAtMachine("/", count);
}

int64_t ResidentBytes() { return ProcBytes("/proc/self/status", "VmRSS"); }

std::map<int, double> ThreadWaitSeconds(const std::string& root) {
  std::map<int, double> waits;
  std::error_code error;
  using Folder = std::filesystem::directory_iterator;
  for (Folder entry(root + "proc/self/task", error); !error && entry != Folder(); entry.increment(error)) {
    // Nanoseconds of running, nanoseconds of waiting, turns. A thread may have ended meanwhile.
    const std::vector<std::string> numbers = absl::StrSplit(ReadAll(entry->path() / "schedstat"), ' ');
    int thread = 0;
    int64_t nanoseconds = 0;
    if (numbers.size() == 3 && absl::SimpleAtoi(entry->path().filename().string(), &thread) &&
        absl::SimpleAtoi(numbers[1], &nanoseconds)) {
      waits[thread] = static_cast<double>(nanoseconds) * 1e-9;
    }
  }
  return waits;
}

void KeepStandardStreams() {
  int fd = open("/dev/null", O_RDWR);
  while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/dev/null", O_RDWR);
  if (fd >= 0) close(fd);
}

int RaiseOpenFilesLimit() {
  constexpr rlim_t kMost = 1 << 20;  // The kernel's own default for the most; "unlimited" is not taken.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 1024;
  const rlimit raised{std::max(limit.rlim_cur, std::min(limit.rlim_max, kMost)), limit.rlim_max};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  return static_cast<int>(std::min(limit.rlim_cur, kMost));
}

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  static const struct {
    const char* suffix;
    double factor;
  } kUnits[] = {{"KiB", 1024.0},
                {"MiB", 1048576.0},
                {"GiB", 1073741824.0},
                {"TiB", 1099511627776.0},
                {"kB", 1e3},
                {"KB", 1e3},
                {"MB", 1e6},
                {"GB", 1e9},
                {"TB", 1e12},
                {"B", 1},
                {"", 1}};
  size_t digits = 0;
  while (digits < text.size() && (absl::ascii_isdigit(text[digits]) || text[digits] == '.')) ++digits;
  double number = 0;
  if (digits > 0 && absl::SimpleAtod(text.substr(0, digits), &number)) {
    for (const auto& unit : kUnits) {
      if (text.substr(digits) == unit.suffix && number * unit.factor >= 1 && number * unit.factor < 9e18)
        return static_cast<int64_t>(number * unit.factor);
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is not a size; write it as 4GiB, 500MB or in bytes"));
}

std::string SizeText(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  double size = static_cast<double>(bytes) / 1024;
  const char* const kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < std::size(kUnits); ++unit) size /= 1024;
  return absl::StrFormat("%.1f %s", size, kUnits[unit]);
}

}  // namespace tacc
