#include "machine/secret.h"

#include <sys/random.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tacc {

absl::StatusOr<std::string> NewSecret() {
  char bytes[16];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes))
    return absl::InternalError(absl::StrCat("no random numbers: ", strerror(errno)));
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace tacc
