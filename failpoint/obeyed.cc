#include <cstdlib>

#include "failpoint/failpoint.h"

namespace tacc {

absl::StatusOr<std::unique_ptr<Failpoints>> Failpoints::FromEnvironment() {
  const char* text = std::getenv("TACC_FAILPOINTS");
  return Parse(text == nullptr ? "" : text);
}

}  // namespace tacc
