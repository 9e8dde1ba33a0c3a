#ifndef TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_
#define TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_

#include <algorithm>
#include <cstdint>

namespace tacc::graph {

// How ranks carry out a collective depends on its size. Executors and the planner, which charges it, share the answers.

// The largest sum, in elements, that a group of any size on CPUs sends whole.
inline constexpr int64_t kMaxWholeAllReduceElements = 4096;

// Ranks of a small all-reduce send each other all that they have: inside their machine, and then the machine's sum to
// the k-th ranks of the others. That takes two rounds of messages, where parts that are summed and gathered take four,
// and costs bytes between machines. A group of n ranks, m on each machine, sends n - m times the sum out of a machine,
// a ring 2 (n - 1) / n times. On CPUs a round of messages takes some 50 us, and the slowest network that people train
// on, of 10 Gb/s, carries 128 KiB in the 100 us of the two more rounds: up to so much leaves a machine.
inline constexpr int64_t kWholeBytesOutOfMachine = int64_t{128} << 10;

// The most elements (of four bytes, as most are) that a group on CPUs sums whole; fewer in large groups, where each
// rank must hold what all of them send. The machines hold about equally many of the members.
inline constexpr int64_t WholeAllReduceElements(int64_t num_members, int64_t num_machines) {
  const int64_t most = std::min(kMaxWholeAllReduceElements, (int64_t{1} << 18) / num_members);
  if (num_machines < 2) return most;
  return std::min(most, kWholeBytesOutOfMachine / 4 / (num_members - num_members / num_machines));
}

// The same for GPUs that sum in the order of ranks, whose staging memory must hold what all of them send. Each GPU has
// its share of the network, at least 100 Gb/s, which carries 128 KiB in the 10 us that one more launch and round take
// between machines. A rank sends its machine's sum to the other machines.
inline constexpr int64_t kMaxWholeElementsOnGpus = 32768;
inline constexpr int64_t kWholeBytesOutOfGpu = int64_t{128} << 10;
inline constexpr int64_t WholeAllReduceElementsOnGpus(int64_t num_members, int64_t num_machines) {
  const int64_t most = std::min(kMaxWholeElementsOnGpus, (int64_t{64} << 20) / (3 * num_members + 2) / 8);
  return num_machines < 2 ? most : std::min(most, kWholeBytesOutOfGpu / 4 / (num_machines - 1));
}

// Elements of the piece of a larger sum that each member sums. Pieces are equal where that gives whole 16 bytes, so
// that a library gathers them where they lie; else the last are shorter.
inline constexpr int64_t AllReducePiece(int64_t elements, int64_t num_members) {
  constexpr int64_t kAligned = 8, kLine = 64;
  if (elements % (num_members * kAligned) == 0) return elements / num_members;
  return (elements + num_members * kLine - 1) / (num_members * kLine) * kLine;
}

// The most rows in which equal parts lie side by side and GPUs still gather or sum each row where it lies, in one
// launch of their library. Parts of more rows, or of unequal size, are packed into copies.
inline constexpr int64_t kMaxRowsInPlace = 64;

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_
