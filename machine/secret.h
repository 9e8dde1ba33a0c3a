// Texts that nobody guesses.
#ifndef TACC_MACHINE_SECRET_H_
#define TACC_MACHINE_SECRET_H_

#include <string>

#include "absl/status/statusor.h"

namespace tacc {

// 128 random bits as 32 hex digits. Internal: the system gives none.
absl::StatusOr<std::string> NewSecret();

}  // namespace tacc

#endif  // TACC_MACHINE_SECRET_H_
