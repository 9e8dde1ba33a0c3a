#include "graph/targets/targets.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {

int64_t BiasGradSumBytes(const TensorType& q, const TensorType& bias) {
  constexpr int64_t kTasks = 256, kTile = 64, kMaxElements = 1 << 20;
  const int64_t elements = bias.num_elements();
  if (bias.dims[0] != 1 || elements == 0) return 0;
  const auto tiles = [](int64_t rows) { return (rows + kTile - 1) / kTile; };
  const int64_t all_tiles = bias.dims[1] * tiles(bias.dims[2]) * tiles(bias.dims[3]);
  const int64_t parts = std::min({q.dims[0], kTasks / all_tiles, kMaxElements / elements});
  return parts > 1 ? parts * ((elements * ByteSize(AccumulationType(q.dtype)) + 63) / 64 * 64) : 0;
}

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
