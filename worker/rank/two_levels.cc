#include "worker/rank/two_levels.h"

#include <map>

namespace tacc::worker {

std::optional<TwoLevels> FindTwoLevels(const std::vector<int>& members, int me,
                                       const std::function<int(int)>& machine_of) {
  TwoLevels levels;
  std::map<int, int> found;  // A machine's number, by its first appearance.
  for (size_t i = 0; i < members.size(); ++i) {
    const auto [it, is_new] = found.try_emplace(machine_of(members[i]), levels.num_machines());
    if (is_new) levels.machines.emplace_back();
    std::vector<int>& mates = levels.machines[it->second];
    if (static_cast<int>(i) == me) {
      levels.machine = it->second;
      levels.place = static_cast<int>(mates.size());
    }
    mates.push_back(static_cast<int>(i));
  }
  if (levels.num_machines() < 2 || levels.num_mates() < 2) return std::nullopt;
  for (const std::vector<int>& mates : levels.machines) {
    if (mates.size() != levels.machines[0].size()) return std::nullopt;
  }
  return levels;
}

CollectiveCall ExchangeOf(const CollectiveCall& call) {
  CollectiveCall exchange = call;
  exchange.kind = CollectiveCall::Kind::kExchange;
  exchange.send.assign(call.members.size(), call.send[0]);
  return exchange;
}

std::vector<std::vector<CollectiveCall>> LevelsOfAllGather(const CollectiveCall& call, const TwoLevels& levels) {
  CollectiveCall exchange = call;
  exchange.kind = CollectiveCall::Kind::kExchange;
  // Of members `indexes`; what is sent to each is `send`, what comes from each is its part of the result.
  const auto among = [&](const std::vector<int>& indexes, int me, const Region& send, const auto& receive) {
    CollectiveCall step = exchange;
    step.me = me;
    step.members.clear();
    step.receive.clear();
    step.send.assign(indexes.size(), send);
    for (size_t i = 0; i < indexes.size(); ++i) {
      step.members.push_back(call.members[indexes[i]]);
      step.receive.push_back(receive(static_cast<int>(i)));
    }
    return step;
  };
  std::vector<int> peers;
  for (int k = 0; k < levels.num_machines(); ++k) peers.push_back(levels.Member(k, levels.place));
  std::vector<std::vector<CollectiveCall>> steps(2);
  steps[0].push_back(
      among(peers, levels.machine, call.send[0], [&](int k) { return call.receive[levels.Member(k, levels.place)]; }));
  for (int k = 0; k < levels.num_machines(); ++k) {
    steps[1].push_back(among(levels.machines[levels.machine], levels.place,
                             call.receive[levels.Member(k, levels.place)],
                             [&](int j) { return call.receive[levels.Member(k, j)]; }));
  }
  return steps;
}

}  // namespace tacc::worker
