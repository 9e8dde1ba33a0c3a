// Along which dim states are cut that ranks share at rest.
#ifndef TACC_GRAPH_IR_REST_CUT_H_
#define TACC_GRAPH_IR_REST_CUT_H_

#include <cstdint>
#include <vector>

namespace tacc::graph {

// Along what a tensor is cut into the shards that ranks keep; the planner, which charges the copies that follow from
// it, needs the same answer as the compiler.
struct RestCut {
  int merged = 1;         // the leading dims taken as one
  int dim = 0;            // of the dims then: 0 where any are merged
  bool is_equal = false;  // no shard is padded
};

// A dim of what a rank holds of the tensor in use.
struct DimInUse {
  int64_t extent = 0;
  bool is_split = false;   // over ranks, in use
  bool is_padded = false;  // and the last of these have less
};

// Shards along the first dim lie one behind the other, so that they are gathered and summed where they are. Where that
// dim does not divide by `shards`, it is taken together with as few of the next as make it divide: heads and their
// rows, experts and theirs. Where none do so, or a split in use stands in between or pads the first, the cut is along
// what wastes at most 1 % in padding, else along what wastes least. `dims`: one at least.
RestCut CutAtRest(const std::vector<DimInUse>& dims, int64_t shards);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_REST_CUT_H_
