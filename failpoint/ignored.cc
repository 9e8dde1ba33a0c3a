#include <cstdio>
#include <cstdlib>

#include "failpoint/failpoint.h"

namespace tacc {

absl::StatusOr<std::unique_ptr<Failpoints>> Failpoints::FromEnvironment() {
  const char* text = std::getenv("TACC_FAILPOINTS");
  if (text != nullptr && text[0] != '\0')
    std::fprintf(stderr, "TACC_FAILPOINTS is ignored: only the binaries for tests, in failpoints/, have failpoints\n");
  return std::make_unique<Failpoints>();
}

}  // namespace tacc
