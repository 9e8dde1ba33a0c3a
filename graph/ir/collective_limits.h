#ifndef TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_
#define TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_

#include <algorithm>
#include <cstdint>

namespace tacc::graph {

// What ranks do with a collective depends on its size; the planner, which charges it, needs the same answers.

// The most of any group.
inline constexpr int64_t kMaxWholeAllReduceElements = 4096;

// Up to so many elements the ranks of a group on CPUs sum by sending all that they have to each other: one round of
// messages, not two. In large groups fewer, as each rank must hold what all of them send.
inline constexpr int64_t WholeAllReduceElements(int64_t num_members) {
  return std::min(kMaxWholeAllReduceElements, (int64_t{1} << 18) / num_members);
}

// The same of ranks on GPUs that sum in order, whose staging memory must hold what all of them send.
inline constexpr int64_t kMaxWholeElementsOnGpus = 32768;
inline constexpr int64_t WholeAllReduceElementsOnGpus(int64_t num_members) {
  return std::min(kMaxWholeElementsOnGpus, (int64_t{64} << 20) / (3 * num_members + 2) / 8);
}

// Of parts that lie side by side in so many rows at most, GPUs gather or sum each row where it is, in one launch of
// their library; of more, or of parts of unequal size, copies are packed.
inline constexpr int64_t kMaxRowsInPlace = 64;

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_
