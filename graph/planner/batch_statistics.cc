#include "graph/planner/batch_statistics.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tacc::graph {
namespace {

constexpr char kMoments[] = "batch_moments";

bool HasBatchStatistics(const Graph& forward) {
  return std::any_of(forward.nodes.begin(), forward.nodes.end(), [](const Node& node) { return node.op == kMoments; });
}

bool LossIsSplittable(const Graph& forward) {
  return std::all_of(forward.nodes.begin(), forward.nodes.end(), [](const Node& node) {
    return node.op != Op::kOutput || GetAttr<bool>(node.attrs, "splittable", true);
  });
}

}  // namespace

absl::Status KeepTogether(const Graph& forward, int64_t world, SearchRequest& search) {
  const bool is_open = !search.micro_batch.has_value() && !search.num_micro_batches.has_value();
  if (LossIsSplittable(forward)) {
    if (is_open && HasBatchStatistics(forward)) search.num_micro_batches = 1;
    return absl::OkStatus();
  }
  const bool by_number = search.num_micro_batches.value_or(1) > 1;
  const int64_t micro_batch = search.micro_batch.value_or(search.global_batch);
  if (by_number || micro_batch * world < search.global_batch) {
    return absl::InvalidArgumentError(absl::StrCat(
        by_number ? "dist.pp.num_micro_batches = " : "train.per_device_train_batch_size = ",
        by_number ? *search.num_micro_batches : micro_batch, " splits a step of ", search.global_batch,
        " samples into several micro-batches, but the model's loss is no mean over samples or targets: the losses of "
        "the parts do not add up to that of the whole. Leave it out, let train.global_batch_size be smaller, or give "
        "the model such a mean"));
  }
  search.num_micro_batches = 1;
  return absl::OkStatus();
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
