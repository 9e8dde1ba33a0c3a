#include "client/taccctl/session/up_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "json/parse_json.h"
#include "nlohmann/json.hpp"

namespace tacc::client {
namespace {

std::string StatePath(const std::string& directory) { return directory + "/up.json"; }

}  // namespace

std::string UpDirectory(const Context& context) {
  const std::string state_home = context.Variable("XDG_STATE_HOME");
  if (!state_home.empty() && state_home[0] == '/') return state_home + "/tacc/up";
  return context.Variable("HOME") + "/.local/state/tacc/up";
}

std::string JobNumberFile(const Context& context) {
  const std::string cache = context.Variable("XDG_CACHE_HOME"), home = context.Variable("HOME");
  if (!cache.empty() && cache[0] == '/') return cache + "/tacc/job-number";
  return !home.empty() && home[0] == '/' ? home + "/.cache/tacc/job-number" : "";
}

UpLock::UpLock(const std::string& directory)
    : fd_(open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)),
      held_(fd_ >= 0 && flock(fd_, LOCK_EX | LOCK_NB) == 0) {}

UpLock::~UpLock() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<UpState> ReadUpState(const std::string& directory) {
  std::ifstream stream(StatePath(directory));
  if (!stream) return absl::NotFoundError("`taccctl up` has not started anything");
  const nlohmann::json json = ParseJson(std::string(std::istreambuf_iterator<char>(stream), {}));
  const absl::Status damaged = absl::InvalidArgumentError(
      absl::StrCat(StatePath(directory), " is damaged; stop what runs in ", directory, " by hand and remove it"));
  UpState state;
  try {
    state.address = json.at("address");
    state.metrics_address = json.at("metrics_address");
    state.worker_prefix = json.at("worker_prefix");
    state.threads = json.at("threads");
    state.memory_bytes = json.at("memory_bytes");
    state.devices = json.at("devices");
    state.worker_metrics = json.value("worker_metrics", std::vector<std::string>());
    state.op_libraries = json.value("op_libraries", std::vector<std::string>());
    for (const auto& entry : json.at("processes")) {
      UpProcess process{entry.at("name"), entry.at("pid"), entry.at("start_ticks")};
      if (process.pid < 2) return damaged;
      state.processes.push_back(std::move(process));
    }
  } catch (const nlohmann::json::exception&) {
    return damaged;
  }
  if (state.devices.size() + 1 != state.processes.size()) return damaged;
  if (!state.worker_metrics.empty() && state.worker_metrics.size() != state.devices.size()) return damaged;
  return state;
}

absl::Status WriteUpState(const std::string& directory, const UpState& state) {
  nlohmann::ordered_json json = {{"address", state.address},
                                 {"metrics_address", state.metrics_address},
                                 {"worker_prefix", state.worker_prefix},
                                 {"threads", state.threads},
                                 {"memory_bytes", state.memory_bytes},
                                 {"devices", state.devices},
                                 {"worker_metrics", state.worker_metrics},
                                 {"op_libraries", state.op_libraries},
                                 {"processes", nlohmann::json::array()}};
  for (const UpProcess& process : state.processes) {
    json["processes"].push_back({{"name", process.name}, {"pid", process.pid}, {"start_ticks", process.start_ticks}});
  }
  const std::string path = StatePath(directory), temporary = path + ".tmp";
  std::ofstream stream(temporary);
  stream << json.dump(2) << "\n";
  stream.close();
  if (!stream || chmod(temporary.c_str(), 0600) != 0 || rename(temporary.c_str(), path.c_str()) != 0)
    return absl::InternalError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

UpProcess LookAtProcess(const std::string& name, pid_t pid) {
  UpProcess process{name, pid, 0};
  std::ifstream stream(absl::StrCat("/proc/", pid, "/stat"));
  std::stringstream text;
  text << stream.rdbuf();
  // PID (NAME) STATE PPID ...; the name may hold anything. Start time is field 22.
  const std::string stat = text.str();
  const size_t end = stat.rfind(") ");
  if (end == std::string::npos) return process;
  const std::vector<std::string> fields = absl::StrSplit(stat.substr(end + 2), ' ');
  if (fields.size() > 19 && fields[0] != "Z" && fields[0] != "X")
    (void)absl::SimpleAtoi(fields[19], &process.start_ticks);
  return process;
}

bool IsRunning(const UpProcess& process) {
  return process.start_ticks != 0 && LookAtProcess(process.name, process.pid).start_ticks == process.start_ticks;
}

std::vector<std::string> EndedProcesses(const UpState& state) {
  std::vector<std::string> names;
  for (const UpProcess& process : state.processes) {
    if (!IsRunning(process)) names.push_back(process.name);
  }
  return names;
}

}  // namespace tacc::client
