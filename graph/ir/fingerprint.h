#ifndef TACC_GRAPH_IR_FINGERPRINT_H_
#define TACC_GRAPH_IR_FINGERPRINT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace tacc::graph {

// 16 hex digits that tell texts apart (FNV-1a, 64 bits): names a program or a model in logs, caches and checkpoints.
// Guards against nobody.
std::string Fingerprint(absl::string_view text);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_FINGERPRINT_H_
