#include "graph/ir/sequence_order.h"

namespace tacc::graph {

int64_t SequenceOrder::PositionOf(int64_t index) const {
  if (zigzag <= 1) return index;
  const int64_t chunk = extent / (2 * zigzag), i = index / chunk;
  return (i % 2 == 0 ? i / 2 : 2 * zigzag - 1 - i / 2) * chunk + index % chunk;
}

std::vector<int64_t> Positions(const SequenceOrder& order, const Range& range) {
  std::vector<int64_t> positions;
  for (int64_t i = range.begin; i < range.end; ++i) positions.push_back(order.PositionOf(i));
  return positions;
}

std::vector<PositionRun> PositionRuns(const SequenceOrder& order, const Range& range, int64_t block, int64_t shift) {
  const int64_t size = block == 0 ? order.extent : block;
  std::vector<PositionRun> runs;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int64_t from = ((i - shift * size) % order.extent + order.extent) % order.extent;
    const int64_t position = order.PositionOf(from);
    if (runs.empty() || runs.back().block != i / size || runs.back().position + runs.back().length != position) {
      runs.push_back({0, position, i / size});
    }
    ++runs.back().length;
  }
  return runs;
}

}  // namespace tacc::graph
