#ifndef TACC_WORKER_RANK_COLLECTIVES_TWO_LEVELS_H_
#define TACC_WORKER_RANK_COLLECTIVES_TWO_LEVELS_H_

#include <functional>
#include <optional>
#include <vector>

#include "worker/rank/collectives/collective_call.h"

namespace tacc::worker {

// How the members of a group that lies across machines meet: inside each machine (mates), and the k-th of one with the
// k-th of each other (peers). What goes between machines then is what a ring would send there: of n members, m on each
// machine, a rank sends its own part to n/m - 1 peers, where all members would otherwise send to all n - m of other
// machines.
struct TwoLevels {
  std::vector<std::vector<int>> machines;  // Indexes of members by machine, in order, as many on each.
  int machine = 0;                         // Where this rank is,
  int place = 0;                           // and which one there.

  int num_machines() const { return static_cast<int>(machines.size()); }
  int num_mates() const { return static_cast<int>(machines[0].size()); }
  // Index of the member `place` of `machine`.
  int Member(int at_machine, int at_place) const { return machines[at_machine][at_place]; }
};

// Nothing: one machine holds all, or none holds two, or they do not hold as many. Members of a machine need not be
// neighbours. `machine_of` a rank.
std::optional<TwoLevels> FindTwoLevels(const std::vector<int>& members, int me,
                                       const std::function<int(int)>& machine_of);

// On how many machines the members are.
int NumMachines(const std::vector<int>& members, const std::function<int(int)>& machine_of);

// An all-gather (kAllGather) as exchanges in levels: those of one need nothing of each other, and those of the second
// what the first has brought.
std::vector<std::vector<CollectiveCall>> LevelsOfAllGather(const CollectiveCall& call, const TwoLevels& levels);
// An all-reduce whose result has the summands' type, as calls one after the other, each of one level: the mates' sum of
// a part each, the peers' sum of a piece of that part each, and exchanges that gather the pieces and the parts. The
// bits of a sum in two levels, with the fewest messages: a part of several machines' pieces lies in a row.
std::vector<CollectiveCall> LevelsOfAllReduce(const CollectiveCall& call, const TwoLevels& levels);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_TWO_LEVELS_H_
