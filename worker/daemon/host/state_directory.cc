#include "worker/daemon/host/state_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "json/parse_json.h"
#include "machine/secret.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc::worker {
namespace {

constexpr int kStartTimeField = 22;
// From SIGKILL to the end of a process that is not stuck.
constexpr double kKillSeconds = 30;
constexpr char kSharedMemory[] = "/dev/shm";
constexpr size_t kHashDigits = 16, kRandomDigits = 16;

// Returns the start time of a live process (clock ticks since boot), which with the id names it uniquely; empty when
// there is none or it is a zombie.
std::string StartTime(pid_t pid) {
  std::ifstream in(absl::StrCat("/proc/", pid, "/stat"));
  const std::string text(std::istreambuf_iterator<char>(in), {});
  // The second field is the program's name in parentheses and may hold anything.
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return "";
  const std::vector<std::string> fields = absl::StrSplit(text.substr(name_end + 1), ' ', absl::SkipWhitespace());
  if (fields.size() < kStartTimeField - 2 || fields[0] == "Z" || fields[0] == "X") return "";
  return fields[kStartTimeField - 3];
}

// Sets the mode, whatever the umask was.
absl::Status MakeOwn(const std::string& path, mode_t mode) {
  return chmod(path.c_str(), mode) == 0 ? absl::OkStatus() : ErrnoStatus(errno, path);
}

// A file of this user alone.
absl::Status WriteOwnFile(const std::string& path, const std::string& content) {
  if (absl::Status status = WriteSmallFile(path, content); !status.ok()) return status;
  return MakeOwn(path, 0600);
}

absl::Status EndOldRank(const std::string& record_path, double patience_seconds) {
  const absl::StatusOr<std::string> text = ReadSmallFile(record_path, 4096);
  if (!text.ok()) return absl::OkStatus();
  const nlohmann::json record = ParseJson(*text);
  if (!record.is_object() || !record.contains("pid") || !record["pid"].is_number_integer() ||
      !record.contains("start_time") || !record["start_time"].is_string()) {
    return absl::OkStatus();
  }
  const pid_t pid = record["pid"].get<pid_t>();
  const std::string start_time = record["start_time"].get<std::string>();
  if (pid <= 1 || start_time.empty()) return absl::OkStatus();
  const absl::Time kill_at = absl::Now() + absl::Seconds(patience_seconds);
  bool is_killed = false;
  // A killed process can stay for a while in a system call that cannot be interrupted; no rank may start before it is
  // gone.
  while (StartTime(pid) == start_time) {
    if (!is_killed && absl::Now() >= kill_at) {
      kill(-pid, SIGKILL);
      kill(pid, SIGKILL);
      is_killed = true;
    }
    if (absl::Now() >= kill_at + absl::Seconds(kKillSeconds)) {
      return absl::FailedPreconditionError(
          absl::StrCat("the rank of an earlier daemon, process ", pid,
                       ", cannot be killed; it may hang in a file system or a driver"));
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  return absl::OkStatus();
}

// Status blocks and folders whose names begin so. Those of others stay.
void RemoveShared(absl::string_view prefix) {
  for (const std::string& name : ListDirectory(kSharedMemory).value_or(std::vector<std::string>())) {
    if (absl::StartsWith(absl::StrCat("/", name), prefix)) (void)RemoveTree(absl::StrCat(kSharedMemory, "/", name));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& path, double patience_seconds) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("state directory ", path, ": cannot be made"));
  const std::string real_path = std::filesystem::canonical(path, error).string();
  if (error) return ErrnoStatus(error.value(), absl::StrCat("state directory ", path));
  // One that was given to this daemon by another user stays as that user has made it.
  (void)chmod(real_path.c_str(), 0700);
  const std::string lock_path = absl::StrCat(real_path, "/lock");
  const int lock_fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (lock_fd < 0) return ErrnoStatus(errno, absl::StrCat("state directory ", lock_path, ": cannot be opened"));
  if (flock(lock_fd, LOCK_EX | LOCK_NB) != 0) {
    const int lock_error = errno;
    close(lock_fd);
    if (lock_error != EWOULDBLOCK) return ErrnoStatus(lock_error, absl::StrCat(lock_path, ": cannot be locked"));
    return absl::AlreadyExistsError(
        absl::StrCat("state directory ", real_path,
                     " is used by another daemon; end that one, or give each daemon its own --state-dir"));
  }
  Sha256 hash;
  hash.Update(real_path.data(), real_path.size());
  const std::string name = absl::StrCat("tacc-", hash.HexDigest().substr(0, kHashDigits));
  const absl::StatusOr<std::string> random = NewSecret();
  if (!random.ok()) {
    close(lock_fd);
    return random.status();
  }
  std::unique_ptr<StateDirectory> directory(new StateDirectory(
      real_path, lock_fd, name, absl::StrCat("/", name, "-", random->substr(0, kRandomDigits), "-")));
  if (absl::Status status = EndOldRank(absl::StrCat(real_path, "/rank.json"), patience_seconds); !status.ok())
    return status;
  directory->ClearRank();
  RemoveShared(absl::StrCat("/", name, "-"));
  // One that was another user's becomes this one's.
  (void)RemoveTree(directory->RunPath());
  // Found out now rather than when the first rank starts.
  if (absl::Status status = directory->MakeRunFolder(); !status.ok()) return status;
  const std::string trial = absl::StrCat(directory->RunPath(), "/trial");
  if (absl::Status status = WriteSmallFile(trial, "x"); !status.ok()) return status;
  if (absl::Status status = RemoveTree(trial); !status.ok()) return status;
  return directory;
}

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::TakeOver(const nlohmann::json& handed) {
  try {
    return std::unique_ptr<StateDirectory>(
        new StateDirectory(handed.at("path").get<std::string>(), handed.at("lock_fd").get<int>(),
                           handed.at("cgroup_name").get<std::string>(), handed.at("block_prefix").get<std::string>()));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("the state directory that was handed over: ", error.what()));
  }
}

nlohmann::json StateDirectory::HandOver() {
  return {{"path", path_},
          {"lock_fd", std::exchange(lock_fd_, -1)},
          {"cgroup_name", cgroup_name_},
          {"block_prefix", status_block_prefix_}};
}

StateDirectory::~StateDirectory() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

absl::Status StateDirectory::MakeRunFolder() const {
  if (absl::Status status = MakeDirectory(RunPath()); !status.ok()) return status;
  return MakeOwn(RunPath(), user_.has_value() ? 0711 : 0700);
}

absl::Status StateDirectory::LetIn(const User& user) {
  user_ = user;
  (void)chmod(path_.c_str(), 0711);  // Where that user cannot enter it, this is told.
  if (absl::Status status = MakeRunFolder(); !status.ok()) return status;
  return CheckCanEnter(user, RunPath());
}

absl::Status StateDirectory::WriteStartFiles(const std::string& start, const std::string& program) {
  if (absl::Status status = MakeRunFolder(); !status.ok()) return status;
  // The start file has its attempt's token.
  for (const auto& [path, content] : {std::pair{ProgramPath(), &program}, std::pair{StartPath(), &start}}) {
    absl::Status status = WriteOwnFile(path, *content);
    if (status.ok() && user_.has_value()) status = GiveTo(*user_, path);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status StateDirectory::RecordRank(pid_t pid) {
  const nlohmann::json record = {{"pid", pid}, {"start_time", StartTime(pid)}};
  return WriteOwnFile(absl::StrCat(path_, "/rank.json"), record.dump() + "\n");
}

void StateDirectory::ClearRank() {
  // What cannot be removed now is removed at the next start.
  (void)RemoveTree(absl::StrCat(path_, "/rank.json"));
  (void)RemoveTree(StartPath());
  (void)RemoveTree(ProgramPath());
  RemoveShared(status_block_prefix_);
}

}  // namespace tacc::worker
