#ifndef TACC_WORKER_RANK_COLLECTIVES_BIND_COLLECTIVE_H_
#define TACC_WORKER_RANK_COLLECTIVES_BIND_COLLECTIVE_H_

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "kernels/tensor.h"
#include "worker/rank/collectives/collectives.h"

namespace tacc::worker {

// The logical range of each dim that `rank` holds of a value; without a placement the value's own extents.
std::vector<graph::Range> RangesOf(const graph::Value& value, const graph::Mesh& mesh, int64_t rank);

// Binds all_gather, reduce_scatter, all_reduce, all_to_all, rotate_blocks of `graph` for `rank`: its group are the
// ranks that differ from it on the axes of `over` only; of stage_sum: in their stage only, one of `stages`. Uneven
// shards: only logical elements are sent; what the result has beyond is left as it is. Errors: Internal for attributes,
// placements or an overlap of operand and result that the op cannot have.
absl::StatusOr<CollectiveCall> BindCollective(const graph::Graph& graph, const graph::Node& node,
                                              const graph::Mesh& mesh, int64_t rank, const kernels::TensorView& in,
                                              const kernels::TensorView& out);

// Binds send or recv of a stash's copy `state`: the peer is the rank of the other stage with the same coordinates else.
absl::StatusOr<CollectiveCall> BindMessage(const graph::Node& node, const graph::Mesh& mesh, int64_t rank,
                                           const kernels::TensorView& state);

// Binds shard_slice as a local copy: one region of the operand, the same of the result.
struct LocalCopy {
  Region from;
  Region to;
};
absl::StatusOr<LocalCopy> BindShardSlice(const graph::Graph& graph, const graph::Node& node, const graph::Mesh& mesh,
                                         int64_t rank, const kernels::TensorView& in, const kernels::TensorView& out);

// The parts of a value beyond its logical extents, as regions to fill with zeros; they cover it, and may overlap.
std::vector<Region> PaddingOf(const graph::Value& value, const graph::Mesh& mesh, int64_t rank,
                              const kernels::TensorView& view);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_BIND_COLLECTIVE_H_
