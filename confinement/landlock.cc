#include "confinement/landlock.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <link.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "machine/descriptor.h"

namespace tacc {
namespace {

// Source: linux/landlock.h of Linux 6.12; the installed one may be older than the kernel.
constexpr uint64_t kExecute = 1ULL << 0;
constexpr uint64_t kWriteFile = 1ULL << 1;
constexpr uint64_t kReadFile = 1ULL << 2;
constexpr uint64_t kReadDir = 1ULL << 3;
constexpr uint64_t kRemoveDir = 1ULL << 4;
constexpr uint64_t kRemoveFile = 1ULL << 5;
constexpr uint64_t kMakeDir = 1ULL << 7;
constexpr uint64_t kMakeReg = 1ULL << 8;
constexpr uint64_t kMakeSocket = 1ULL << 9;
constexpr uint64_t kAllOfFirstVersion = (1ULL << 13) - 1;
constexpr uint64_t kRefer = 1ULL << 13;       // To rename from one folder to another; version 2.
constexpr uint64_t kTruncate = 1ULL << 14;    // Version 3.
constexpr uint64_t kScopeSignal = 1ULL << 1;  // Version 6.
constexpr uint64_t kOfFiles = kExecute | kWriteFile | kReadFile | kTruncate;
constexpr uint64_t kRead = kReadFile | kReadDir;
constexpr uint64_t kWrite = kRead | kWriteFile | kTruncate | kRemoveDir | kRemoveFile | kMakeDir | kMakeReg | kRefer;

constexpr int kReferVersion = 2, kTruncateVersion = 3, kNetworkVersion = 4, kScopeVersion = 6;
constexpr uint32_t kAskVersion = 1;
constexpr int kPathBeneath = 1;

struct Ruleset {
  uint64_t files = 0;
  uint64_t network = 0;
  uint64_t scoped = 0;
};
struct [[gnu::packed]] BeneathRule {
  uint64_t rights = 0;
  int32_t folder = -1;
};

#ifndef SYS_landlock_create_ruleset
#define SYS_landlock_create_ruleset 444
#define SYS_landlock_add_rule 445
#define SYS_landlock_restrict_self 446
#endif

absl::Status Failed(const char* what) {
  return absl::InternalError(absl::StrCat("this process cannot be confined: ", what, ": ", strerror(errno)));
}

absl::Status Allow(int ruleset, const std::string& path, uint64_t rights) {
  const Descriptor place(open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat info = {};
  if (!place.is_open() || fstat(place.get(), &info) != 0) return absl::OkStatus();
  const BeneathRule rule{S_ISDIR(info.st_mode) ? rights : rights & kOfFiles, place.get()};
  if (rule.rights == 0 || syscall(SYS_landlock_add_rule, ruleset, kPathBeneath, &rule, 0) == 0) return absl::OkStatus();
  return Failed(path.c_str());
}

}  // namespace

int LandlockVersion() {
  const auto version = syscall(SYS_landlock_create_ruleset, nullptr, 0, kAskVersion);
  return version > 0 ? static_cast<int>(version) : 0;
}

bool HasLandlock() { return LandlockVersion() > 0; }

std::string LandlockLacks(int version) {
  std::vector<std::string> lacks;
  if (version < kTruncateVersion) lacks.push_back("cutting short other files of its user (Linux 6.2 does)");
  if (version < kScopeVersion) lacks.push_back("signals to other processes of its user (Linux 6.12 does)");
  return absl::StrJoin(lacks, " and ");
}

absl::Status RestrictFiles(const FileRights& rights) {
  const int version = LandlockVersion();
  if (version == 0) return absl::UnimplementedError("this kernel has no Landlock, or does not let this process use it");
  Ruleset handled;
  handled.files =
      kAllOfFirstVersion | (version >= kReferVersion ? kRefer : 0) | (version >= kTruncateVersion ? kTruncate : 0);
  if (version >= kScopeVersion) handled.scoped = kScopeSignal;
  const size_t size = version >= kScopeVersion     ? sizeof(Ruleset)
                      : version >= kNetworkVersion ? offsetof(Ruleset, scoped)
                                                   : offsetof(Ruleset, network);
  const Descriptor ruleset(static_cast<int>(syscall(SYS_landlock_create_ruleset, &handled, size, 0)));
  if (!ruleset.is_open()) return Failed("a ruleset of Landlock");
  for (const FileRights& of : {rights, SystemRights()}) {
    for (const std::string& path : of.write) {
      if (absl::Status status = Allow(ruleset.get(), path, kWrite & handled.files); !status.ok()) return status;
    }
    for (const std::string& path : of.read) {
      if (absl::Status status = Allow(ruleset.get(), path, kRead); !status.ok()) return status;
    }
    for (const std::string& path : of.sockets) {
      if (absl::Status status = Allow(ruleset.get(), path, kMakeSocket); !status.ok()) return status;
    }
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return Failed("PR_SET_NO_NEW_PRIVS");
  if (syscall(SYS_landlock_restrict_self, ruleset.get(), 0) != 0) return Failed("Landlock");
  return absl::OkStatus();
}

FileRights SystemRights() {
  FileRights rights;
  rights.read = {"/usr",
                 "/lib",
                 "/lib64",
                 "/proc",
                 "/sys",
                 "/etc/ld.so.cache",
                 "/etc/ld.so.conf",
                 "/etc/ld.so.conf.d",
                 "/etc/hosts",
                 "/etc/host.conf",
                 "/etc/resolv.conf",
                 "/etc/nsswitch.conf",
                 "/etc/gai.conf",
                 "/etc/services",
                 "/etc/protocols",
                 "/etc/passwd",
                 "/etc/group",
                 "/etc/localtime",
                 "/etc/timezone",
                 "/etc/libibverbs.d",
                 "/etc/nccl.conf",
                 "/run/nvidia-persistenced",
                 "/dev/random",
                 "/dev/urandom"};
  rights.write = {"/dev/null", "/dev/zero", "/dev/full", "/dev/shm", "/dev/infiniband", "/dev/nvidia-caps"};
  glob_t found = {};
  if (glob("/dev/nvidia*", GLOB_NOSORT, nullptr, &found) == 0)
    rights.write.insert(rights.write.end(), found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  rights.sockets = {"/dev/shm"};  // A rank's for its client, where a coordinator has no port.
  return rights;
}

std::vector<std::string> LibraryFolders() {
  std::set<std::string> folders;
  dl_iterate_phdr(
      [](dl_phdr_info* library, size_t, void* to) {
        std::string folder = std::filesystem::path(library->dlpi_name).parent_path().string();
        // The CUDA libraries of a wheel lie beside LibTorch's.
        constexpr char kPackages[] = "/site-packages/";
        if (const size_t at = folder.find(kPackages); at != std::string::npos)
          folder.resize(at + sizeof(kPackages) - 1);
        if (!folder.empty() && folder[0] == '/') static_cast<std::set<std::string>*>(to)->insert(folder);
        return 0;
      },
      &folders);
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) folders.insert(self.parent_path().string());
  return {folders.begin(), folders.end()};
}

}  // namespace tacc
