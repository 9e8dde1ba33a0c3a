#ifndef TACC_CONFINEMENT_TRUSTED_FILE_H_
#define TACC_CONFINEMENT_TRUSTED_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace tacc {

// Returns where `path`, which is absolute, leads through its links: a regular file with code that this user runs for
// others. InvalidArgument, with what to do: it is none, cannot be read, or others than root and this user could change
// it, or put another one in its place: they own it or a folder above it, or may write there.
absl::StatusOr<std::string> TrustedFile(const std::string& path);

}  // namespace tacc

#endif  // TACC_CONFINEMENT_TRUSTED_FILE_H_
