#ifndef TACC_GRAPH_IR_FINGERPRINT_H_
#define TACC_GRAPH_IR_FINGERPRINT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tacc::graph {

// 16 hex digits that tell texts apart (FNV-1a, 64 bits); they name programs and models in logs, caches and checkpoints.
// Not cryptographic.
std::string Fingerprint(absl::string_view text);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_FINGERPRINT_H_
