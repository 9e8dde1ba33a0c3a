#include "worker/rank/collectives/two_levels.h"

#include <algorithm>
#include <map>
#include <set>

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

int NumMachines(const std::vector<int>& members, const std::function<int(int)>& machine_of) {
  std::set<int> machines;
  for (int member : members) machines.insert(machine_of(member));
  return static_cast<int>(machines.size());
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

std::vector<CollectiveCall> LevelsOfAllReduce(const CollectiveCall& call, const TwoLevels& levels) {
  const int64_t machines = levels.num_machines(), mates = levels.num_mates(), n = machines * mates;
  const int64_t size = kernels::SizeOf(call.send_dtype), elements = call.send[0].bytes() / size;
  const int64_t piece = (elements + n - 1) / n, part = machines * piece;
  const auto cut = [&](const Region& whole, int64_t first, int64_t count) {
    const int64_t begin = std::min(elements, first), end = std::min(elements, first + count);
    return Flat(whole.data + begin * size, (end - begin) * size);
  };
  CollectiveCall inside = call, across = call;
  inside.me = levels.place;
  across.me = levels.machine;
  for (CollectiveCall* sum : {&inside, &across}) {
    sum->kind = CollectiveCall::Kind::kReduceScatter;
    sum->members.clear();
    sum->send.clear();
  }
  std::vector<Region> parts, pieces;
  for (int j = 0; j < mates; ++j) {
    inside.members.push_back(call.members[levels.Member(levels.machine, j)]);
    inside.send.push_back(cut(call.send[0], j * part, part));
    parts.push_back(cut(call.receive[0], j * part, part));
  }
  inside.receive = {parts[levels.place]};
  for (int k = 0; k < machines; ++k) {
    across.members.push_back(call.members[levels.Member(k, levels.place)]);
    pieces.push_back(cut(call.receive[0], levels.place * part + k * piece, piece));
  }
  across.send = pieces;
  across.receive = {pieces[levels.machine]};
  const auto gathered = [](const CollectiveCall& sum, const std::vector<Region>& all) {
    CollectiveCall exchange = sum;
    exchange.kind = CollectiveCall::Kind::kExchange;
    exchange.send.assign(all.size(), all[sum.me]);
    exchange.receive = all;
    return exchange;
  };
  return {inside, across, gathered(across, pieces), gathered(inside, parts)};
}

}  // namespace tacc::worker
