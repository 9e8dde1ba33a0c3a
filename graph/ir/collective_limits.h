#ifndef TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_
#define TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_

#include <algorithm>
#include <cstdint>

namespace tacc::graph {

// What ranks do with a collective depends on its size; the planner, which charges it, needs the same answers.

// The most of any group.
inline constexpr int64_t kMaxWholeAllReduceElements = 4096;

// Of a small sum all send all that they have to each other, inside their machine and then its sum to the k-th ranks of
// the others: two rounds of messages, where parts that are summed and gathered take four. What that costs is bytes
// between machines. A group of n ranks, m on each machine, sends n - m times the sum out of a machine, a ring 2 (n - 1)
// / n times. On CPUs a round of messages takes some 50 us, and the slowest network that people train on, of 10 Gb/s,
// carries 128 KiB in the 100 us of the two more rounds: up to so much leaves a machine.
inline constexpr int64_t kWholeBytesOutOfMachine = int64_t{128} << 10;

// Up to so many elements (of four bytes, as most are) the ranks of a group on CPUs sum so; in large groups fewer, as
// each rank must hold what all of them send. The machines hold equally many of the members, or about so.
inline constexpr int64_t WholeAllReduceElements(int64_t num_members, int64_t num_machines) {
  const int64_t most = std::min(kMaxWholeAllReduceElements, (int64_t{1} << 18) / num_members);
  if (num_machines < 2) return most;
  return std::min(most, kWholeBytesOutOfMachine / 4 / (num_members - num_members / num_machines));
}

// The same of ranks on GPUs that sum in order, whose staging memory must hold what all of them send. Each has its share
// of the network, of 100 Gb/s at least, which carries 128 KiB in the 10 us that a launch and a round more take between
// machines; to the other machines a rank sends its machine's sum.
inline constexpr int64_t kMaxWholeElementsOnGpus = 32768;
inline constexpr int64_t kWholeBytesOutOfGpu = int64_t{128} << 10;
inline constexpr int64_t WholeAllReduceElementsOnGpus(int64_t num_members, int64_t num_machines) {
  const int64_t most = std::min(kMaxWholeElementsOnGpus, (int64_t{64} << 20) / (3 * num_members + 2) / 8);
  return num_machines < 2 ? most : std::min(most, kWholeBytesOutOfGpu / 4 / (num_machines - 1));
}

// A larger sum is cut into pieces of so many elements, one for each member: equal ones, which a library gathers where
// they lie, if they are of whole 16 bytes; else the last are shorter.
inline constexpr int64_t AllReducePiece(int64_t elements, int64_t num_members) {
  constexpr int64_t kAligned = 8, kLine = 64;
  if (elements % (num_members * kAligned) == 0) return elements / num_members;
  return (elements + num_members * kLine - 1) / (num_members * kLine) * kLine;
}

// Of parts that lie side by side in so many rows at most, GPUs gather or sum each row where it is, in one launch of
// their library; of more, or of parts of unequal size, copies are packed.
inline constexpr int64_t kMaxRowsInPlace = 64;

}  // namespace tacc::graph

#endif  // TACC_GRAPH_IR_COLLECTIVE_LIMITS_H_
