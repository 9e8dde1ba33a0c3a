// In which order the ranks of a ring hold the positions of a sequence, so that causal attention costs each the same.
#ifndef TACC_GRAPH_IR_SEQUENCE_ORDER_H_
#define TACC_GRAPH_IR_SEQUENCE_ORDER_H_

#include <cstdint>
#include <vector>

#include "graph/ir/sharding.h"

namespace tacc::graph {

// The order in which tensors hold a sequence. Natural: index i holds position i. Zigzag over n blocks: the positions
// are cut into 2n equal chunks, and block i holds chunks i and 2n-1-i, so that under a causal mask each block has the
// same work, and the same with any other block. Source: Dubey et al., "The Llama 3 herd of models", 2024,
// section 3.3.2.
struct SequenceOrder {
  int64_t extent = 0;
  int64_t zigzag = 0;  // n; 0 and 1: natural. Otherwise 2n divides the extent.

  int64_t PositionOf(int64_t index) const;
};

// Returns the positions of the indices [range.begin, range.end).
std::vector<int64_t> Positions(const SequenceOrder& order, const Range& range);

// A run of neighbouring indices with consecutive positions.
struct PositionRun {
  int64_t length = 0;
  int64_t position = 0;
  int64_t block = 0;
  bool operator==(const PositionRun&) const = default;
};
// Returns the runs of the indices [range.begin, range.end) of a sequence that is cut into blocks of `block` indices (0:
// one block). Index i of block b holds what index i of block b - shift (modulo the number of blocks) holds in `order`.
std::vector<PositionRun> PositionRuns(const SequenceOrder& order, const Range& range, int64_t block, int64_t shift);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_SEQUENCE_ORDER_H_
