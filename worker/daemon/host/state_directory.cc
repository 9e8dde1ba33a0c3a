#include "worker/daemon/host/state_directory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/files/sha256.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {
namespace {

constexpr int kStartTimeField = 22;
// From SIGKILL to the end of a process that is not stuck.
constexpr double kKillSeconds = 30;

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

absl::Status EndOldRank(const std::string& record_path, double patience_seconds) {
  const absl::StatusOr<std::string> text = ReadSmallFile(record_path, 4096);
  if (!text.ok()) return absl::OkStatus();
  const nlohmann::json record = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
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

}  // namespace

absl::StatusOr<std::unique_ptr<StateDirectory>> StateDirectory::Open(const std::string& path, double patience_seconds) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("state directory ", path, ": cannot be made"));
  const std::string real_path = std::filesystem::canonical(path, error).string();
  if (error) return ErrnoStatus(error.value(), absl::StrCat("state directory ", path));
  const std::string lock_path = absl::StrCat(real_path, "/lock");
  const int lock_fd = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
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
  std::unique_ptr<StateDirectory> directory(
      new StateDirectory(real_path, lock_fd, absl::StrCat("/tacc-", hash.HexDigest().substr(0, 16), "-")));
  if (absl::Status status = EndOldRank(absl::StrCat(real_path, "/rank.json"), patience_seconds); !status.ok())
    return status;
  directory->ClearRank();
  // Found out now rather than when the first rank starts.
  const std::string run = absl::StrCat(real_path, "/run");
  if (absl::Status status = MakeDirectory(run); !status.ok()) return status;
  const std::string trial = absl::StrCat(run, "/trial");
  if (absl::Status status = WriteSmallFile(trial, "x"); !status.ok()) return status;
  if (absl::Status status = RemoveTree(trial); !status.ok()) return status;
  return directory;
}

StateDirectory::~StateDirectory() { close(lock_fd_); }

absl::Status StateDirectory::WriteStartFiles(const std::string& start, const std::string& program) {
  if (absl::Status status = MakeDirectory(absl::StrCat(path_, "/run")); !status.ok()) return status;
  if (absl::Status status = WriteSmallFile(ProgramPath(), program); !status.ok()) return status;
  return WriteSmallFile(StartPath(), start);
}

absl::Status StateDirectory::RecordRank(pid_t pid) {
  const nlohmann::json record = {{"pid", pid}, {"start_time", StartTime(pid)}};
  return WriteSmallFile(absl::StrCat(path_, "/rank.json"), record.dump() + "\n");
}

void StateDirectory::ClearRank() {
  // What cannot be removed now is removed at the next start.
  (void)RemoveTree(absl::StrCat(path_, "/rank.json"));
  (void)RemoveTree(StartPath());
  (void)RemoveTree(ProgramPath());
  RemoveStatusBlocks(status_block_prefix_);
}

}  // namespace tacc::worker
