// Cgroups (version 2) for processes that run for a job: what each may take of the machine with all that it starts, and
// a way to end all of that. Linux 5.14.
#ifndef TACC_CONFINEMENT_CGROUP_H_
#define TACC_CONFINEMENT_CGROUP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc {

struct CgroupLimits {
  // 0: no limit.
  int64_t memory_bytes = 0;   // Page cache counts; there is no swap beyond it.
  int64_t num_processes = 0;  // Each thread counts as one.

  bool IsNone() const { return memory_bytes == 0 && num_processes == 0; }
};

// One process's, with all that it starts. Not thread-safe. Destroying it kills what is left in it, and removes it; one
// with a process that does not end within a second stays until the next Cgroups::Open.
class Cgroup {
 public:
  // Takes over the cgroup that is the folder `path`.
  explicit Cgroup(std::string path) : path_(std::move(path)) {}
  ~Cgroup();
  Cgroup(const Cgroup&) = delete;
  Cgroup& operator=(const Cgroup&) = delete;

  const std::string& path() const { return path_; }
  // A process that writes "0" there is in it.
  std::string ProcsPath() const;
  // Ends all that is in it at once.
  void Kill();
  // Leaves it as it is when the object is destroyed, to one that takes it over.
  void Release() { is_released_ = true; }
  // How many of its processes the kernel has ended for want of memory; 0: none, or it does not count them here.
  int64_t NumOutOfMemory() const;

 private:
  const std::string path_;
  bool is_released_ = false;
};

// Beneath the cgroup of this process, a folder with the cgroups of what it starts. Not thread-safe; the cgroups do not
// outlive it.
class Cgroups {
 public:
  // Makes the folder `name` and ends what is in it: what one of the same name has left that was killed. With limits,
  // moves this process into a leaf `daemon` of it first, since the kernel limits only what lies in a cgroup without
  // processes of its own. `root`: "/" but in tests, where proc/self is looked up.
  // FailedPrecondition, with what to do: this process may make no cgroups, or none with these limits.
  static absl::StatusOr<std::unique_ptr<Cgroups>> Open(const std::string& root, const std::string& name,
                                                       const CgroupLimits& limits);
  // As another object can take them over: in this process, also after an execve in it.
  struct Held {
    std::string own;
    std::string name;
    std::vector<std::string> enabled;
  };
  // Lets go of them: they stay.
  Held Release();
  static std::unique_ptr<Cgroups> TakeOver(Held held, const CgroupLimits& limits);
  // Leaves all as it was.
  ~Cgroups();
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  const std::string& path() const { return path_; }
  const CgroupLimits& limits() const { return limits_; }

  // Makes an empty one with the limits. Characters of `name` that a name of a cgroup should not have become dashes.
  // Internal: it cannot be made.
  absl::StatusOr<std::unique_ptr<Cgroup>> Make(const std::string& name);

 private:
  Cgroups(std::string own, const std::string& name, const CgroupLimits& limits);
  absl::Status MakeFolder();
  absl::Status EnableControllers();

  const std::string own_;   // The cgroup that this process was in.
  const std::string path_;  // Beneath it.
  const CgroupLimits limits_;
  bool is_released_ = false;
  std::vector<std::string> enabled_;  // Controllers that own_ did not have for its parts before.
};

}  // namespace tacc

#endif  // TACC_CONFINEMENT_CGROUP_H_
