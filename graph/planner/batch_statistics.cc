#include "graph/planner/batch_statistics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

constexpr char kMoments[] = "batch_moments";

}  // namespace

bool HasBatchStatistics(const Graph& forward) {
  return std::any_of(forward.nodes.begin(), forward.nodes.end(), [](const Node& node) { return node.op == kMoments; });
}

absl::Status CheckBatchStatistics(const Graph& one_row, const PlanRequest& request, const Layout& layout) {
  const int64_t of_all = layout.micro_batch * layout.batch_ranks();
  const int64_t own = request.sync_batchnorm ? of_all : layout.micro_batch;
  for (const Node& node : one_row.nodes) {
    if (node.op != kMoments || (GetAttr<bool>(node.attrs, "sync") ? of_all : own) > 1) continue;
    const auto extents = GetAttr<Dims>(node.attrs, "extents");
    if (std::any_of(extents.begin(), extents.end(), [](int64_t d) { return d > 1; })) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the batch norm at ", node.module.empty() ? "the top level" : node.module,
                     " has one number a channel in a micro-batch of 1 sample, and so no variance; use a larger "
                     "train.per_device_train_batch_size or train.global_batch_size",
                     of_all > own ? ", or compute.sync_batchnorm: true" : ""));
  }
  return absl::OkStatus();
}

}  // namespace tacc::graph
