#include "worker/rank/collectives/doubling_all_gather.h"

#include <algorithm>

namespace tacc::worker {

bool GathersByDoubling(const CollectiveCall& call) {
  const auto n = static_cast<int64_t>(call.members.size());
  const int64_t bytes = call.receive[0].bytes();
  const auto is_equal = [&](const Region& block) { return block.bytes() == bytes; };
  return n >= kLeastDoublingMembers && bytes > 0 && n * bytes <= kMostDoublingBytes &&
         std::all_of(call.receive.begin(), call.receive.end(), is_equal);
}

std::vector<CollectiveCall> DoublingRounds(const CollectiveCall& call, char* blocks) {
  const int n = static_cast<int>(call.members.size());
  const int64_t bytes = call.receive[0].bytes();
  std::vector<CollectiveCall> rounds;
  for (int distance = 1; distance < n; distance *= 2) {
    const int count = std::min(distance, n - distance);  // Blocks that move; all have the first `distance`.
    const int to = (call.me - distance + n) % n, from = (call.me + distance) % n;
    std::vector<int> indexes = {call.me, to, from};
    std::sort(indexes.begin(), indexes.end());
    indexes.erase(std::unique(indexes.begin(), indexes.end()), indexes.end());
    CollectiveCall round = call;
    round.kind = CollectiveCall::Kind::kExchange;
    round.members.clear();
    round.send.assign(indexes.size(), Region());
    round.receive.assign(indexes.size(), Region());
    for (size_t i = 0; i < indexes.size(); ++i) {
      round.members.push_back(call.members[indexes[i]]);
      if (indexes[i] == call.me) round.me = static_cast<int>(i);
      if (indexes[i] == to) round.send[i] = Flat(blocks, count * bytes);
      if (indexes[i] == from) round.receive[i] = Flat(blocks + distance * bytes, count * bytes);
    }
    rounds.push_back(std::move(round));
  }
  return rounds;
}

}  // namespace tacc::worker
