#include "graph/ir/fingerprint.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tacc::graph {

std::string Fingerprint(absl::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace tacc::graph
