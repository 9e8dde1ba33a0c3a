#include "confinement/confine.h"

#include <filesystem>
#include <iterator>
#include <system_error>
#include <thread>

#include "absl/strings/str_cat.h"
#include "confinement/landlock.h"

namespace tacc {
namespace {

absl::Status RestrictPaths(const AllowedPaths& paths, std::vector<std::string> libraries) {
  if (!paths.IsLimited() || !HasLandlock()) return absl::OkStatus();
  FileRights rights;
  rights.write = paths.roots();
  rights.read = std::move(libraries);
  rights.read.insert(rights.read.end(), paths.read_roots().begin(), paths.read_roots().end());
  return RestrictFiles(rights);
}

}  // namespace

absl::Status ConfineProcess(const Confinement& confinement) {
  if (confinement.IsNone()) return absl::OkStatus();
  std::error_code error;
  const auto tasks = std::filesystem::directory_iterator("/proc/self/task", error);
  if (const auto num_threads = error ? 0 : std::distance(begin(tasks), end(tasks)); num_threads != 1)
    return absl::FailedPreconditionError(absl::StrCat("this process cannot be confined: it has ", num_threads,
                                                      " threads, of which one would be confined"));
  if (confinement.user.has_value()) {
    if (absl::Status status = BecomeUser(*confinement.user); !status.ok()) return status;
  }
  std::vector<std::string> libraries = LibraryFolders();
  libraries.insert(libraries.end(), confinement.libraries.begin(), confinement.libraries.end());
  return RestrictPaths(confinement.paths, std::move(libraries));
}

absl::Status RunConfined(const Confinement& confinement, const std::function<void()>& work) {
  if (confinement.IsNone()) {
    work();
    return absl::OkStatus();
  }
  absl::Status status;
  std::thread thread([&] {
    if (confinement.user.has_value()) status = UseFilesAs(*confinement.user);
    if (status.ok()) status = RestrictPaths(confinement.paths, {});
    if (status.ok()) work();
  });
  thread.join();
  return status;
}

std::vector<std::string> ConfinementArguments(const Confinement& confinement) {
  std::vector<std::string> arguments;
  const auto add = [&arguments](const char* flag, const std::string& value) {
    arguments.insert(arguments.end(), {flag, value});
  };
  if (confinement.paths.IsLimited()) {
    for (const std::string& root : confinement.paths.roots()) add("--allow-path", root);
    for (const std::string& root : confinement.paths.read_roots()) add("--allow-read", root);
  }
  if (confinement.user.has_value()) add("--user", confinement.user->name);
  return arguments;
}

std::string Warning(const Confinement& confinement) {
  if (!confinement.paths.IsLimited()) return "";
  if (!HasLandlock()) {
    return "--allow-path: this kernel has no Landlock (Linux 5.13), or does not let this process use it: paths of jobs "
           "are checked, but a rank itself is not confined, nor is what changes links beneath the folders at that "
           "moment";
  }
  const std::string lacks = LandlockLacks(LandlockVersion());
  return lacks.empty() ? "" : absl::StrCat("--allow-path: this kernel's Landlock does not keep a rank from ", lacks);
}

}  // namespace tacc
