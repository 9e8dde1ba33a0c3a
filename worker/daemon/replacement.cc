#include "worker/daemon/replacement.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "machine/descriptor.h"
#include "nlohmann/json.hpp"
#include "process/run_program.h"
#include "spdlog/logger.h"

namespace tacc::worker {
namespace {

constexpr double kCheckSeconds = 5;
constexpr unsigned kFirstOther = 3;  // Descriptor behind the standard streams.

absl::Status Failure(const char* what) { return absl::InternalError(absl::StrCat(what, ": ", strerror(errno))); }

bool WriteAll(int fd, const std::vector<uint8_t>& data) {
  size_t written = 0;
  while (written < data.size()) {
    const ssize_t n = write(fd, data.data() + written, data.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return false;
    written += n;
  }
  return true;
}

}  // namespace

std::vector<std::string> OwnCommand(int argc, char** argv) {
  std::vector<std::string> command;
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == kTakeOverFlag) ++i;  // And its value.
    if (argument != kTakeOverFlag && argument != kCheckTakeOverFlag) command.push_back(argument);
  }
  std::error_code error;
  command[0] = absl::StrContains(command[0], "/") ? std::filesystem::absolute(command[0], error).string()
                                                  : std::filesystem::read_symlink("/proc/self/exe", error).string();
  return command;
}

absl::Status CheckReplacement(const std::vector<std::string>& command) {
  ProcessOptions options;
  options.argv = command;
  options.argv.push_back(kCheckTakeOverFlag);
  options.input = ProcessOptions::Input::kEmpty;
  RunLimits limits;
  limits.seconds = kCheckSeconds;
  const absl::StatusOr<ProgramResult> result = RunProgram(options, limits, [] { return false; });
  if (!result.ok()) return absl::FailedPreconditionError(result.status().message());
  if (result->end.exit_code == 0 && result->out == kTakesOver) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(command[0], " cannot take over: it ",
                                                    result->timed_out ? "did not end" : result->end.Text(),
                                                    " and said: ", result->out, result->err));
}

absl::Status HandOver(std::vector<std::string> command, nlohmann::json daemon, StateDirectory* state, Cgroups* cgroups,
                      int parent_fd, spdlog::logger* logger) {
  nlohmann::json handed = {{"daemon", std::move(daemon)}, {"state", state->HandOver()}, {"cgroups", nullptr}};
  if (cgroups != nullptr) {
    const Cgroups::Held held = cgroups->Release();
    handed["cgroups"] = {{"own", held.own}, {"name", held.name}, {"enabled", held.enabled}};
  }
  std::vector<int> kept = {parent_fd, handed["state"]["lock_fd"]};
  if (const nlohmann::json& rank = handed["daemon"]["rank"]; !rank.is_null())
    kept.insert(kept.end(), {rank["stdin_fd"], rank["stdout_fd"], rank["stderr_fd"]});
  const Descriptor memory(memfd_create("tacc-worker-handed-over", MFD_CLOEXEC));
  if (!memory.is_open()) return Failure("memfd_create");
  // Not as text, which takes UTF-8 alone: a line that is half read may end within a character.
  if (!WriteAll(memory.get(), nlohmann::json::to_cbor(handed))) return Failure("what is handed over cannot be written");
  if (close_range(kFirstOther, std::numeric_limits<unsigned>::max(), CLOSE_RANGE_CLOEXEC) != 0)
    return Failure("close_range");
  for (const int fd : kept) {
    if (fd >= 0 && fcntl(fd, F_SETFD, 0) != 0) return Failure("a descriptor cannot be kept");
  }
  if (fcntl(memory.get(), F_SETFD, 0) != 0) return Failure("a descriptor cannot be kept");
  command.insert(command.end(), {kTakeOverFlag, absl::StrCat(memory.get())});
  std::vector<char*> arguments;
  for (std::string& argument : command) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  execv(arguments[0], arguments.data());
  const absl::Status status = Failure(arguments[0]);
  logger->error("not replaced, and goes on: {}", std::string(status.message()));
  execv("/proc/self/exe", arguments.data());
  return status;
}

absl::StatusOr<nlohmann::json> TakeHandedOver(int fd) {
  (void)close_range(kFirstOther, std::numeric_limits<unsigned>::max(), CLOSE_RANGE_CLOEXEC);
  const Descriptor memory(fd);
  struct stat status;
  if (fstat(fd, &status) != 0) return absl::InvalidArgumentError(absl::StrCat(kTakeOverFlag, " ", fd, ": not open"));
  std::vector<uint8_t> data(status.st_size);
  if (pread(fd, data.data(), data.size(), 0) != static_cast<ssize_t>(data.size()))
    return absl::InvalidArgumentError(absl::StrCat(kTakeOverFlag, " ", fd, ": cannot be read"));
  nlohmann::json handed = nlohmann::json::from_cbor(data, /*strict=*/true, /*allow_exceptions=*/false);
  if (!handed.is_object()) return absl::InvalidArgumentError(absl::StrCat(kTakeOverFlag, " ", fd, ": cannot be read"));
  return handed;
}

absl::StatusOr<std::unique_ptr<Cgroups>> CgroupsOf(const nlohmann::json& cgroups, const CgroupLimits& limits) {
  try {
    return Cgroups::TakeOver({cgroups.at("own").get<std::string>(), cgroups.at("name").get<std::string>(),
                              cgroups.at("enabled").get<std::vector<std::string>>()},
                             limits);
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the cgroups that were handed over: ", error.what()));
  }
}

absl::StatusOr<v1::DeviceProfile> DeviceOf(const nlohmann::json& daemon) {
  v1::DeviceProfile device;
  if (const auto text = daemon.find("device");
      text != daemon.end() && text->is_string() && device.ParseFromString(text->get<std::string>()))
    return device;
  return absl::InvalidArgumentError("what was handed over has no device");
}

}  // namespace tacc::worker
