#include "graph/ir/op.h"

#include <algorithm>
#include <iterator>

namespace tacc::graph {
namespace {

// By kind.
constexpr absl::string_view kNames[] = {"",           "input",         "param",       "read",           "constant",
                                        "output",     "store",         "all_gather",  "reduce_scatter", "all_reduce",
                                        "all_to_all", "rotate_blocks", "stage_sum",   "send",           "recv",
                                        "finish",     "wait",          "shard_slice", "mask_padding"};
static_assert(std::size(kNames) == Op::kMaskPadding + 1);

}  // namespace

Op::Op(absl::string_view name) {
  const auto* const known = std::find(std::begin(kNames) + 1, std::end(kNames), name);
  if (known != std::end(kNames)) {
    kind_ = static_cast<Kind>(known - std::begin(kNames));
  } else {
    compute_name_ = std::string(name);
  }
}

absl::string_view Op::name() const { return kind_ == kCompute ? absl::string_view(compute_name_) : kNames[kind_]; }

}  // namespace tacc::graph
