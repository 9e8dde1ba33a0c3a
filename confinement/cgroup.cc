#include "confinement/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "machine/descriptor.h"

namespace tacc {
namespace {

// Of this process, while there are limits.
constexpr char kDaemonLeaf[] = "daemon";
constexpr size_t kMaxNameBytes = 200;
// From a kill to the end of processes that are not stuck in the kernel.
constexpr int kEndMilliseconds = 1000;
constexpr int kLookMilliseconds = 2;

constexpr char kDelegate[] =
    "start it as root, or in a cgroup of its own that its user may change (systemd-run --user --scope -p Delegate=yes; "
    "of a service Delegate=yes)";

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Returns 0 or an errno.
int WriteSetting(const std::string& path, const std::string& value) {
  const Descriptor file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!file.is_open()) return errno;
  return write(file.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size()) ? 0 : errno;
}

absl::Status Set(const std::string& path, const std::string& value) {
  const int error = WriteSetting(path, value);
  if (error == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(path, ": \"", value, "\" cannot be written: ", strerror(error)));
}

// The folder of this process's cgroup.
absl::StatusOr<std::string> OwnFolder(const std::string& root) {
  const std::string cgroup_text = ReadAll(absl::StrCat(root, "proc/self/cgroup"));
  std::string own;
  for (absl::string_view line : absl::StrSplit(cgroup_text, '\n')) {
    if (absl::ConsumePrefix(&line, "0::")) own = std::string(line);
  }
  const std::string mount_text = ReadAll(absl::StrCat(root, "proc/self/mountinfo"));
  for (const absl::string_view line : absl::StrSplit(mount_text, '\n')) {
    // ID PARENT DEVICE ROOT PLACE OPTIONS... - TYPE SOURCE OPTIONS
    const std::vector<absl::string_view> fields = absl::StrSplit(line, ' ');
    if (fields.size() < 5 || !absl::StrContains(line, " - cgroup2 ")) continue;
    // Of a container without a namespace of its own a part of the tree is mounted.
    absl::string_view beneath = own;
    if (fields[3] != "/" && !absl::ConsumePrefix(&beneath, fields[3])) continue;
    if (!beneath.empty() && (beneath[0] != '/' || absl::StartsWith(beneath, "/.."))) continue;
    return absl::StrCat(root, absl::StripPrefix(fields[4], "/"), absl::StripSuffix(beneath, "/"));
  }
  return absl::FailedPreconditionError(
      "this process sees no cgroup of its own of version 2 (no file system cgroup2 in /proc/self/mountinfo that holds "
      "the path in /proc/self/cgroup)");
}

std::vector<std::string> FoldersIn(const std::string& path) {
  std::error_code error;
  using Folder = std::filesystem::directory_iterator;
  std::vector<std::string> folders;
  for (Folder entry(path, error); !error && entry != Folder(); entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored)) folders.push_back(entry->path().string());
  }
  return folders;
}

// Of cgroups; their files go with them. False: something lives there.
bool RemoveFolders(const std::string& path) {
  for (const std::string& folder : FoldersIn(path)) RemoveFolders(folder);
  return rmdir(path.c_str()) == 0 || errno == ENOENT;
}

void KillAndRemove(const std::string& path) {
  (void)WriteSetting(absl::StrCat(path, "/cgroup.kill"), "1");
  for (int waited = 0; !RemoveFolders(path) && waited < kEndMilliseconds; waited += kLookMilliseconds)
    usleep(kLookMilliseconds * 1000);
}

std::vector<std::string> ControllersFor(const CgroupLimits& limits) {
  std::vector<std::string> controllers;
  if (limits.memory_bytes > 0) controllers.push_back("memory");
  if (limits.num_processes > 0) controllers.push_back("pids");
  return controllers;
}

// As cgroup.subtree_control takes them: "+memory +pids".
std::string Changes(const char* sign, const std::vector<std::string>& controllers) {
  return absl::StrJoin(controllers, " ", [sign](std::string* out, const std::string& controller) {
    absl::StrAppend(out, sign, controller);
  });
}

}  // namespace

Cgroup::~Cgroup() {
  if (!is_released_) KillAndRemove(path_);
}

std::string Cgroup::ProcsPath() const { return absl::StrCat(path_, "/cgroup.procs"); }

void Cgroup::Kill() { (void)WriteSetting(absl::StrCat(path_, "/cgroup.kill"), "1"); }

int64_t Cgroup::NumOutOfMemory() const {
  const std::string text = ReadAll(absl::StrCat(path_, "/memory.events"));
  int64_t num_killed = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::ConsumePrefix(&line, "oom_kill ")) (void)absl::SimpleAtoi(line, &num_killed);
  }
  return num_killed;
}

Cgroups::Cgroups(std::string own, const std::string& name, const CgroupLimits& limits)
    : own_(std::move(own)), path_(absl::StrCat(own_, "/", name)), limits_(limits) {}

absl::StatusOr<std::unique_ptr<Cgroups>> Cgroups::Open(const std::string& root, const std::string& name,
                                                       const CgroupLimits& limits) {
  absl::StatusOr<std::string> own = OwnFolder(root);
  if (!own.ok()) return own.status();
  std::unique_ptr<Cgroups> cgroups(new Cgroups(*std::move(own), name, limits));
  if (absl::Status status = cgroups->MakeFolder(); !status.ok()) return status;
  if (absl::Status status = cgroups->EnableControllers(); !status.ok()) return status;
  // Found out now rather than by the first process.
  const absl::StatusOr<std::unique_ptr<Cgroup>> trial = cgroups->Make("trial");
  if (!trial.ok()) return absl::FailedPreconditionError(trial.status().message());
  return cgroups;
}

absl::Status Cgroups::MakeFolder() {
  if (mkdir(path_.c_str(), 0755) != 0 && errno != EEXIST) {
    return absl::FailedPreconditionError(
        absl::StrCat("no cgroup can be made in ", own_, ": ", strerror(errno), "; ", kDelegate));
  }
  if (access(absl::StrCat(path_, "/cgroup.kill").c_str(), W_OK) != 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        path_, "/cgroup.kill: ", strerror(errno), "; it takes Linux 5.14, and the right to write there: ", kDelegate));
  }
  for (const std::string& left : FoldersIn(path_)) {
    if (left != absl::StrCat(path_, "/", kDaemonLeaf)) KillAndRemove(left);
  }
  return absl::OkStatus();
}

absl::Status Cgroups::EnableControllers() {
  const std::vector<std::string> wanted = ControllersFor(limits_);
  if (wanted.empty()) {
    // Where it is there anyway, it tells who was ended for want of memory.
    (void)WriteSetting(absl::StrCat(path_, "/cgroup.subtree_control"), "+memory");
    return absl::OkStatus();
  }
  const std::string text = ReadAll(absl::StrCat(own_, "/cgroup.controllers"));
  const std::vector<absl::string_view> there = absl::StrSplit(absl::StripAsciiWhitespace(text), ' ');
  for (const std::string& controller : wanted) {
    if (std::find(there.begin(), there.end(), controller) != there.end()) continue;
    return absl::FailedPreconditionError(absl::StrCat(own_, " has no controller ", controller, " (cgroup.controllers: ",
                                                      text.empty() ? "none" : absl::StripAsciiWhitespace(text),
                                                      "): whoever made that cgroup must delegate it (systemd: "
                                                      "Delegate=yes), and the kernel must not have it in cgroups "
                                                      "of version 1"));
  }
  const std::string leaf = absl::StrCat(path_, "/", kDaemonLeaf);
  if (mkdir(leaf.c_str(), 0755) != 0 && errno != EEXIST)
    return absl::FailedPreconditionError(absl::StrCat(leaf, ": cannot be made: ", strerror(errno), "; ", kDelegate));
  if (const int error = WriteSetting(absl::StrCat(leaf, "/cgroup.procs"), "0"); error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("this process cannot move to ", leaf, ": ", strerror(error), "; ", kDelegate));
  }
  const std::string before = ReadAll(absl::StrCat(own_, "/cgroup.subtree_control"));
  const std::vector<absl::string_view> on = absl::StrSplit(absl::StripAsciiWhitespace(before), ' ');
  for (const std::string& controller : wanted) {
    if (std::find(on.begin(), on.end(), controller) == on.end()) enabled_.push_back(controller);
  }
  const int error = WriteSetting(absl::StrCat(own_, "/cgroup.subtree_control"), Changes("+", wanted));
  if (error == EBUSY) {
    const std::vector<std::string> others =
        absl::StrSplit(ReadAll(absl::StrCat(own_, "/cgroup.procs")), '\n', absl::SkipEmpty());
    return absl::FailedPreconditionError(absl::StrCat("other processes are in the cgroup ", own_, " (",
                                                      absl::StrJoin(others, ", "),
                                                      "), of whose parts the kernel limits none then; ", kDelegate));
  }
  if (error != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(own_, "/cgroup.subtree_control: ", strerror(error), "; ", kDelegate));
  }
  return Set(absl::StrCat(path_, "/cgroup.subtree_control"), Changes("+", wanted));
}

Cgroups::Held Cgroups::Release() {
  is_released_ = true;
  return {own_, path_.substr(own_.size() + 1), enabled_};
}

std::unique_ptr<Cgroups> Cgroups::TakeOver(Held held, const CgroupLimits& limits) {
  std::unique_ptr<Cgroups> cgroups(new Cgroups(std::move(held.own), held.name, limits));
  cgroups->enabled_ = std::move(held.enabled);
  return cgroups;
}

Cgroups::~Cgroups() {
  if (is_released_) return;
  if (!limits_.IsNone()) {
    (void)WriteSetting(absl::StrCat(path_, "/cgroup.subtree_control"), Changes("-", ControllersFor(limits_)));
    if (!enabled_.empty()) (void)WriteSetting(absl::StrCat(own_, "/cgroup.subtree_control"), Changes("-", enabled_));
    (void)WriteSetting(absl::StrCat(own_, "/cgroup.procs"), "0");
  }
  RemoveFolders(path_);
}

absl::StatusOr<std::unique_ptr<Cgroup>> Cgroups::Make(const std::string& name) {
  std::string plain = name.substr(0, kMaxNameBytes);
  for (char& c : plain) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '.' && c != '_') c = '-';
  }
  // No other folder than one of its own.
  if (plain.empty() || plain[0] == '.' || plain == kDaemonLeaf) plain.insert(0, "-");
  auto cgroup = std::make_unique<Cgroup>(absl::StrCat(path_, "/", plain));
  const std::string& path = cgroup->path();
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST)
    return absl::InternalError(absl::StrCat("the cgroup ", path, " cannot be made: ", strerror(errno)));
  // For want of memory all end together: the process without one that it has started is worth nothing.
  (void)WriteSetting(absl::StrCat(path, "/memory.oom.group"), "1");
  absl::Status status;
  if (limits_.memory_bytes > 0) {
    status.Update(Set(absl::StrCat(path, "/memory.max"), absl::StrCat(limits_.memory_bytes)));
    const std::string swap = absl::StrCat(path, "/memory.swap.max");
    if (access(swap.c_str(), F_OK) == 0) status.Update(Set(swap, "0"));
  }
  if (limits_.num_processes > 0)
    status.Update(Set(absl::StrCat(path, "/pids.max"), absl::StrCat(limits_.num_processes)));
  if (!status.ok()) return status;
  return cgroup;
}

}  // namespace tacc
