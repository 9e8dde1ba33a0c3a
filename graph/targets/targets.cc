#include "graph/targets/targets.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {

const std::vector<TargetKind>& TargetKinds() {
  static const std::vector<TargetKind> kinds = {CpuTarget(), CudaTarget(), ReferenceTarget()};
  return kinds;
}

const TargetKind* FindTargetKind(absl::string_view name) {
  for (const TargetKind& kind : TargetKinds()) {
    if (name == kind.name) return &kind;
  }
  return nullptr;
}

absl::StatusOr<TargetKind> ParseTargetKind(absl::string_view name) {
  if (const TargetKind* kind = FindTargetKind(name)) return *kind;
  const auto append_name = [](std::string* out, const TargetKind& kind) { out->append(kind.name); };
  return absl::InvalidArgumentError(
      absl::StrCat("\"", name, "\" is no kind of device; known: ", absl::StrJoin(TargetKinds(), ", ", append_name)));
}

}  // namespace tacc::graph
