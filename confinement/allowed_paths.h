// Where the files of jobs may be: beneath folders that whoever runs a daemon lists.
#ifndef TACC_CONFINEMENT_ALLOWED_PATHS_H_
#define TACC_CONFINEMENT_ALLOWED_PATHS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc {

// Returns the path for a message: in quotes, on one line, cut if it is long.
std::string QuotedPath(const std::string& path);

// InvalidArgument, with the path quoted: it is empty, not absolute, longer than the kernel takes (4,095 bytes, 255 of a
// name), or has a control character.
absl::Status CheckPathText(const std::string& path);

// A job's files may be anywhere, or beneath roots. Thread-safe.
class AllowedPaths {
 public:
  enum class Use { kRead, kWrite };

  // Anywhere.
  AllowedPaths() = default;
  // Beneath `roots` alone, if there are any; beneath `read_roots` for reading. All absolute, and folders by the time of
  // a check, which opens them anew: they may be mounted again meanwhile.
  AllowedPaths(std::vector<std::string> roots, std::vector<std::string> read_roots)
      : roots_(std::move(roots)), read_roots_(std::move(read_roots)) {}

  bool IsLimited() const { return !roots_.empty(); }
  const std::vector<std::string>& roots() const { return roots_; }
  const std::vector<std::string>& read_roots() const { return read_roots_; }

  // OK: the text of the path is sound, it lies beneath a root, and what is there is a folder or a regular file. One
  // that is not there lies in a folder that does, which is all that is asked of it. Links lead it nowhere else: one in
  // a path to read must be relative and stay beneath its root, and a path to write has none below the root. Opens
  // neither files nor devices nor pipes. InvalidArgument: it may not be used. NotFound, PermissionDenied, Unavailable:
  // a root, or the way to the path, cannot be looked at.
  //
  // Who can change links beneath the roots can do so after the check: what uses the path is confined as well
  // (confinement/confine.h).
  absl::Status Check(const std::string& path, Use use) const;

 private:
  absl::Status Refused(const std::string& path, const std::string& why) const;
  absl::Status CheckBeneath(const std::string& root, const std::string& path, const std::string& rest, Use use) const;

  std::vector<std::string> roots_;
  std::vector<std::string> read_roots_;
};

// The roots of a flag as AllowedPaths takes them: absolute, without a slash at the end. InvalidArgument, with `flag`:
// one is no folder.
absl::StatusOr<std::vector<std::string>> RootsOfFlag(const std::string& flag, const std::vector<std::string>& values);

}  // namespace tacc

#endif  // TACC_CONFINEMENT_ALLOWED_PATHS_H_
