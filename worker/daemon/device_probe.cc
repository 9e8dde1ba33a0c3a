#include "worker/daemon/device_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/posix_file.h"
#include "worker/daemon/child_process.h"
#include "worker/daemon/rank_environment.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxProbeBytes = 1 << 20;
constexpr size_t kMaxErrorBytes = 2000;

// Everything that a measurement depends on. The program's size and time stand for its content: a rebuilt one is
// measured anew.
json CacheKey(const ProbeRequest& request) {
  struct stat info = {};
  stat(request.rank_path.c_str(), &info);
  return {{"version", request.version},
          {"device", request.device},
          {"threads", request.num_threads},
          {"cpu", request.cpu_model},
          {"rank_bytes", int64_t{info.st_size}},
          {"rank_time", int64_t{info.st_mtim.tv_sec}},
          {"rank_nanos", int64_t{info.st_mtim.tv_nsec}}};
}

absl::StatusOr<std::string> RunProbe(const ProbeRequest& request) {
  absl::StatusOr<std::unique_ptr<ChildProcess>> started = ChildProcess::Start(
      {request.rank_path, "--probe", "--device", request.device, "--threads", absl::StrCat(request.num_threads)},
      RankEnvironment(request.num_threads));
  if (!started.ok()) return absl::FailedPreconditionError(started.status().message());
  ChildProcess& child = **started;
  const absl::Time deadline = absl::Now() + absl::Seconds(request.timeout_seconds);
  std::string out, err;
  bool out_open = true, err_open = true;
  while (absl::Now() < deadline) {
    std::vector<pollfd> polled = {{child.stdout_fd(), POLLIN, 0}, {child.stderr_fd(), POLLIN, 0}};
    for (int fd : request.end_descriptors) polled.push_back({fd, POLLIN, 0});
    poll(polled.data(), polled.size(), 20);
    for (size_t i = 2; i < polled.size(); ++i) {
      if (polled[i].revents != 0) return absl::CancelledError("asked to end during the device probe");
    }
    if (out_open) out_open = child.ReadStdout(&out);
    if (err_open) err_open = child.ReadStderr(&err);
    if (static_cast<int64_t>(out.size() + err.size()) > kMaxProbeBytes) break;
    const absl::optional<ProcessEnd> end = child.TryReap();
    if (!end.has_value()) continue;
    child.ReadStdout(&out);
    child.ReadStderr(&err);
    if (end->exit_code == 0) return out;
    if (err.size() > kMaxErrorBytes) err = err.substr(err.size() - kMaxErrorBytes);
    return absl::FailedPreconditionError(absl::StrCat(
        request.rank_path, " --probe ended with ",
        end->exit_code.has_value() ? absl::StrCat("exit code ", *end->exit_code) : absl::StrCat("signal ", end->signal),
        err.empty() ? "" : ": ", absl::StripAsciiWhitespace(err)));
  }
  return absl::DeadlineExceededError(
      absl::StrCat(request.rank_path, " --probe did not end within ", request.timeout_seconds, " s"));
}

// What the file remembers for this key.
absl::StatusOr<v1::DeviceProfile> ReadCache(const std::string& path, const json& key) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxProbeBytes);
  if (!text.ok()) return text.status();
  const json cached = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!cached.is_object() || cached.value("key", json()) != key) return absl::NotFoundError("another key");
  return ParseDeviceProfile(cached.value("probe", json()).dump());
}

// Held while a daemon measures. Daemons that start together would measure how they get in each other's way; those that
// wait find the result in the file.
class MeasureLock {
 public:
  explicit MeasureLock(const std::string& path) : fd_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {}
  ~MeasureLock() {
    if (fd_ >= 0) close(fd_);
  }
  MeasureLock(const MeasureLock&) = delete;
  MeasureLock& operator=(const MeasureLock&) = delete;

  // Returns when it is held. Where the file cannot be made there is no waiting.
  absl::Status Take(const ProbeRequest& request) const {
    const absl::Time deadline = absl::Now() + absl::Seconds(request.timeout_seconds);
    while (fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (absl::Now() > deadline)
        return absl::DeadlineExceededError(
            absl::StrCat("another daemon's device probe did not end within ", request.timeout_seconds, " s"));
      std::vector<pollfd> polled;
      for (int fd : request.end_descriptors) polled.push_back({fd, POLLIN, 0});
      if (poll(polled.data(), polled.size(), 20) > 0)
        return absl::CancelledError("asked to end during the device probe");
    }
    return absl::OkStatus();
  }

 private:
  const int fd_;
};

// Another daemon may read or write the file at the same time. Without it the next start measures again.
void WriteCache(const std::string& path, const std::string& content) {
  const std::string temporary = absl::StrCat(path, ".", getpid());
  if (WriteSmallFile(temporary, content).ok() && rename(temporary.c_str(), path.c_str()) == 0) return;
  (void)RemoveTree(temporary);
}

}  // namespace

std::string ProbeCachePath(const std::string& state_dir, const std::string& device, int num_threads) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  std::string directory = state_dir;
  if (cache != nullptr && cache[0] == '/') {
    directory = absl::StrCat(cache, "/tacc");
  } else if (home != nullptr && home[0] == '/') {
    directory = absl::StrCat(home, "/.cache/tacc");
  }
  return absl::StrCat(directory, "/probe-", device, "-", num_threads, ".json");
}

absl::StatusOr<v1::DeviceProfile> ParseDeviceProfile(const std::string& text) {
  const json probe = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!probe.is_object()) return absl::InvalidArgumentError("the device probe printed no JSON object");
  std::string bad;
  const auto string = [&](const char* field) -> std::string {
    const auto it = probe.find(field);
    if (it != probe.end() && it->is_string()) return it->get<std::string>();
    bad = field;
    return "";
  };
  const auto number = [&](const char* field) -> double {
    const auto it = probe.find(field);
    if (it != probe.end() && it->is_number() && it->get<double>() >= 0) return it->get<double>();
    bad = field;
    return 0;
  };
  v1::DeviceProfile profile;
  profile.set_name(string("name"));
  profile.set_kind(string("kind"));
  profile.set_model(string("model"));
  profile.set_threads(static_cast<int32_t>(number("threads")));
  profile.set_memory_bytes(static_cast<int64_t>(number("memory_bytes")));
  profile.set_memory_bytes_per_second(number("memory_bytes_per_second"));
  profile.set_link_bytes_per_second(number("link_bytes_per_second"));
  profile.set_link_latency_seconds(number("link_latency_seconds"));
  profile.set_cpus(number("cpus"));
  const auto flops = probe.find("matmul_flops_per_second");
  if (flops == probe.end() || !flops->is_object() || flops->empty()) {
    bad = "matmul_flops_per_second";
  } else {
    for (const auto& item : flops->items()) {
      if (!item.value().is_number() || !(item.value().get<double>() > 0)) {
        bad = "matmul_flops_per_second";
      } else {
        (*profile.mutable_matmul_flops_per_second())[item.key()] = item.value().get<double>();
      }
    }
  }
  if (!bad.empty()) return absl::InvalidArgumentError(absl::StrCat("the device probe printed no usable \"", bad, "\""));
  return profile;
}

absl::StatusOr<v1::DeviceProfile> ProbeDevice(const ProbeRequest& request) {
  const json key = CacheKey(request);
  if (absl::StatusOr<v1::DeviceProfile> profile = ReadCache(request.cache_path, key); profile.ok()) return profile;
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(request.cache_path).parent_path(), ignored);
  const MeasureLock lock(request.cache_path + ".lock");
  if (absl::Status taken = lock.Take(request); !taken.ok()) return taken;
  if (absl::StatusOr<v1::DeviceProfile> profile = ReadCache(request.cache_path, key); profile.ok()) return profile;
  const absl::StatusOr<std::string> text = RunProbe(request);
  if (!text.ok()) return text.status();
  absl::StatusOr<v1::DeviceProfile> profile = ParseDeviceProfile(*text);
  if (!profile.ok())
    return absl::FailedPreconditionError(absl::StrCat(request.rank_path, ": ", profile.status().message()));
  const json cached = {{"key", key}, {"probe", json::parse(*text)}};
  WriteCache(request.cache_path, cached.dump() + "\n");
  return profile;
}

}  // namespace tacc::worker
