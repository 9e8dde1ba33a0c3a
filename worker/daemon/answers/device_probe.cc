#include "worker/daemon/answers/device_probe.h"

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
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "json/parse_json.h"
#include "machine/device_name.h"
#include "machine/exit_code.h"
#include "nlohmann/json.hpp"
#include "process/run_program.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/daemon/host/rank_environment.h"

namespace tacc::worker {
namespace {

using nlohmann::json;

constexpr int64_t kMaxProbeBytes = 1 << 20;
constexpr size_t kMaxErrorBytes = 2000;
// Beside tacc-rank.
constexpr char kCudaModule[] = "libtacc_cuda.so";
constexpr double kGiB = 1 << 30;

// A program's size and time stand for its content: a rebuilt one is measured anew. Zeros: there is none.
json Stamp(const std::string& path) {
  struct stat info = {};
  stat(path.c_str(), &info);
  return {int64_t{info.st_size}, int64_t{info.st_mtim.tv_sec}, int64_t{info.st_mtim.tv_nsec}};
}

// Everything that a measurement depends on. `gpu`: as it looks, or null.
json CacheKey(const ProbeRequest& request, const v1::DeviceProfile* gpu) {
  json key = {{"version", request.version},
              {"device", request.device},
              {"threads", request.num_threads},
              {"cpu", request.cpu_model},
              {"rank", Stamp(request.rank_path)}};
  if (gpu != nullptr) {
    const std::filesystem::path folder = std::filesystem::path(request.rank_path).parent_path();
    key["module"] = Stamp((folder / kCudaModule).string());
    key["gpu"] = {gpu->model(), gpu->driver(), gpu->total_memory_bytes(),
                  std::map<std::string, std::string>(gpu->links().begin(), gpu->links().end())};
  }
  return key;
}

// What tacc-rank said on stderr: its `error:` lines without the word, else all.
std::string Words(const std::string& err) {
  std::string words;
  for (absl::string_view line : absl::StrSplit(err, '\n')) {
    if (absl::ConsumePrefix(&line, "error: ")) absl::StrAppend(&words, words.empty() ? "" : "; ", line);
  }
  if (words.empty()) words = std::string(absl::StripAsciiWhitespace(err));
  if (words.size() > kMaxErrorBytes) words = words.substr(words.size() - kMaxErrorBytes);
  return words;
}

// What tacc-rank prints when it is asked (`flag`) about the device.
absl::StatusOr<std::string> AskRank(const ProbeRequest& request, const std::string& flag) {
  const auto is_asked_to_end = [&request] {
    std::vector<pollfd> polled;
    for (int fd : request.end_descriptors) polled.push_back({fd, POLLIN, 0});
    return poll(polled.data(), polled.size(), 0) > 0;
  };
  absl::StatusOr<ProgramResult> result = RunProgram(
      {.argv = {request.rank_path, flag, "--device", request.device, "--threads", absl::StrCat(request.num_threads)},
       .environment = RankEnvironment(request.num_threads)},
      {.seconds = request.timeout_seconds, .output_bytes = kMaxProbeBytes}, is_asked_to_end);
  if (!result.ok()) return absl::FailedPreconditionError(result.status().message());
  if (result->cancelled) return absl::CancelledError("asked to end during the device probe");
  if (result->timed_out || result->output_too_long) {
    return absl::DeadlineExceededError(
        absl::StrCat(request.rank_path, " ", flag, " did not end within ", request.timeout_seconds, " s"));
  }
  const ProcessEnd& end = result->end;
  if (end.exit_code == 0) return std::move(result->out);
  const std::string words = Words(result->err);
  if (end.exit_code == kExitBadInput && !words.empty()) {
    absl::string_view what = words;
    absl::ConsumePrefix(&what, absl::StrCat(request.device, ": "));
    return absl::InvalidArgumentError(absl::StrCat("--device ", request.device, ": ", what));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      request.rank_path, " ", flag, " ended with ",
      end.exit_code.has_value() ? absl::StrCat("exit code ", *end.exit_code) : absl::StrCat("signal ", end.signal),
      words.empty() ? "" : ": ", words));
}

// Reads the fields of a device's JSON and remembers which was wrong.
class DeviceFields {
 public:
  static absl::StatusOr<DeviceFields> Parse(const std::string& text) {
    json root = ParseJson(text);
    if (!root.is_object()) return absl::InvalidArgumentError("the device probe printed no JSON object");
    return DeviceFields(std::move(root));
  }

  void ReadIdentity(v1::DeviceProfile* profile) {
    profile->set_name(String("name"));
    profile->set_kind(String("kind"));
    profile->set_model(String("model"));
  }

  void ReadMeasured(v1::DeviceProfile* profile) {
    profile->set_threads(static_cast<int32_t>(Number("threads")));
    profile->set_memory_bytes(static_cast<int64_t>(Number("memory_bytes")));
    profile->set_matmul_fraction(Number("matmul_fraction"));
    if (!(profile->matmul_fraction() > 0 && profile->matmul_fraction() <= 1)) bad_ = "matmul_fraction";
    profile->set_memory_bytes_per_second(Number("memory_bytes_per_second"));
    profile->set_link_bytes_per_second(Number("link_bytes_per_second"));
    profile->set_link_latency_seconds(Number("link_latency_seconds"));
    profile->set_cpus(Number("cpus"));
    ReadSpeeds("matmul_flops_per_second", profile->mutable_matmul_flops_per_second());
    if (profile->matmul_flops_per_second().empty()) bad_ = "matmul_flops_per_second";
    if (profile->kind() == "cpu") profile->set_multiplies_bf16(Bool("multiplies_bf16"));
    if (profile->kind() == "cuda")
      ReadSpeeds("attention_flops_per_second", profile->mutable_attention_flops_per_second());
  }

  void ReadGpu(v1::DeviceProfile* profile) {
    profile->set_total_memory_bytes(static_cast<int64_t>(Number("total_memory_bytes")));
    profile->set_free_memory_bytes(static_cast<int64_t>(Number("free_memory_bytes")));
    profile->set_compute_capability(String("compute_capability"));
    profile->set_driver(String("driver"));
    const json links = Object("links");
    for (const auto& [other, link] : links.items()) {
      if (!link.is_string()) bad_ = "links";
      (*profile->mutable_links())[other] = link.is_string() ? link.get<std::string>() : "";
    }
  }

  absl::Status status() const {
    if (bad_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the device probe printed no usable \"", bad_, "\""));
  }

 private:
  explicit DeviceFields(json root) : root_(std::move(root)) {}

  std::string String(const char* field) {
    const auto it = root_.find(field);
    if (it != root_.end() && it->is_string()) return it->get<std::string>();
    bad_ = field;
    return "";
  }
  double Number(const char* field) {
    const auto it = root_.find(field);
    if (it != root_.end() && it->is_number() && it->get<double>() >= 0) return it->get<double>();
    bad_ = field;
    return 0;
  }
  bool Bool(const char* field) {
    const auto it = root_.find(field);
    if (it != root_.end() && it->is_boolean()) return it->get<bool>();
    bad_ = field;
    return false;
  }
  // 0: what the device lacks.
  void ReadSpeeds(const char* field, google::protobuf::Map<std::string, double>* speeds) {
    const json measured = Object(field);
    for (const auto& [key, value] : measured.items()) {
      const double number = value.is_number() ? value.get<double>() : -1;
      if (!(number >= 0)) bad_ = field;
      if (number > 0) (*speeds)[key] = number;
    }
  }
  json Object(const char* field) {
    const auto it = root_.find(field);
    if (it != root_.end() && it->is_object()) return *it;
    bad_ = field;
    return json::object();
  }

  json root_;
  std::string bad_;
};

// What the file remembers for this key.
absl::StatusOr<v1::DeviceProfile> ReadCache(const std::string& path, const json& key) {
  const absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxProbeBytes);
  if (!text.ok()) return text.status();
  const json cached = ParseJson(*text);
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

std::string CacheDirectory(const std::string& state_dir) {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  if (cache != nullptr && cache[0] == '/') return absl::StrCat(cache, "/tacc");
  if (home != nullptr && home[0] == '/') return absl::StrCat(home, "/.cache/tacc");
  return state_dir;
}

std::string ProbeCachePath(const std::string& state_dir, const std::string& device, int num_threads) {
  return absl::StrCat(CacheDirectory(state_dir), "/probe-", device, "-", num_threads, ".json");
}

absl::StatusOr<v1::DeviceProfile> ParseDeviceProfile(const std::string& text) {
  v1::DeviceProfile profile;
  absl::StatusOr<DeviceFields> fields = DeviceFields::Parse(text);
  if (!fields.ok()) return fields.status();
  fields->ReadIdentity(&profile);
  if (profile.kind() == "cuda") fields->ReadGpu(&profile);
  fields->ReadMeasured(&profile);
  if (!fields->status().ok()) return fields->status();
  return profile;
}

absl::StatusOr<v1::DeviceProfile> LookAtGpu(const ProbeRequest& request) {
  const absl::StatusOr<std::string> text = AskRank(request, "--look");
  if (!text.ok()) return text.status();
  absl::StatusOr<DeviceFields> fields = DeviceFields::Parse(*text);
  if (!fields.ok()) return fields.status();
  v1::DeviceProfile profile;
  fields->ReadIdentity(&profile);
  fields->ReadGpu(&profile);
  if (!fields->status().ok())
    return absl::FailedPreconditionError(absl::StrCat(request.rank_path, " --look: ", fields->status().message()));
  return profile;
}

absl::Status ShareGpuMemory(int64_t wanted, int64_t reserve, v1::DeviceProfile* device) {
  const int64_t available = device->free_memory_bytes() - reserve;
  device->set_reserve_bytes(reserve);
  device->set_memory_bytes(wanted > 0 ? wanted : available);
  if (available > 0 && wanted <= available) return absl::OkStatus();
  const auto gib = [](int64_t bytes) { return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / kGiB); };
  return absl::FailedPreconditionError(absl::StrCat(
      device->name(), " (", device->model(), "): ", gib(device->free_memory_bytes()), " free of ",
      gib(device->total_memory_bytes()), ", of which ", gib(reserve), " is kept in reserve",
      wanted > 0 ? absl::StrCat(", but --memory wants ", gib(wanted)) : ", so nothing is left for a rank",
      "; end what uses the GPU (nvidia-smi lists it), or lower ", wanted > 0 ? "--memory" : "--memory-reserve"));
}

absl::StatusOr<v1::DeviceProfile> ProbeDevice(const ProbeRequest& request) {
  v1::DeviceProfile gpu;
  const bool is_gpu = IsGpu(request.device);
  if (is_gpu) {
    absl::StatusOr<v1::DeviceProfile> look = LookAtGpu(request);
    if (!look.ok()) return look.status();
    gpu = *std::move(look);
  }
  const auto as_it_is = [&](absl::StatusOr<v1::DeviceProfile> profile) {
    if (profile.ok() && is_gpu) profile->set_free_memory_bytes(gpu.free_memory_bytes());
    return profile;
  };
  const json key = CacheKey(request, is_gpu ? &gpu : nullptr);
  absl::StatusOr<v1::DeviceProfile> profile = ReadCache(request.cache_path, key);
  if (profile.ok()) return as_it_is(std::move(profile));
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(request.cache_path).parent_path(), ignored);
  const MeasureLock lock(request.cache_path + ".lock");
  if (absl::Status taken = lock.Take(request); !taken.ok()) return taken;
  profile = ReadCache(request.cache_path, key);
  if (profile.ok()) return as_it_is(std::move(profile));
  const absl::StatusOr<std::string> text = AskRank(request, "--probe");
  if (!text.ok()) return text.status();
  profile = ParseDeviceProfile(*text);
  if (!profile.ok())
    return absl::FailedPreconditionError(absl::StrCat(request.rank_path, ": ", profile.status().message()));
  const json cached = {{"key", key}, {"probe", ParseJson(*text)}};
  // On a machine that was busy: the next start may find it quiet.
  const bool is_cut_short = cached["probe"].value("cut_short", json()) == json(true);
  if (!is_cut_short) WriteCache(request.cache_path, cached.dump() + "\n");
  return as_it_is(std::move(profile));
}

}  // namespace tacc::worker
