#include "worker/rank/collectives/collective_steps.h"

#include <algorithm>
#include <cstdint>

#include "graph/ir/collective_limits.h"

namespace tacc::worker {

CollectiveCall ExchangeOf(const CollectiveCall& call) {
  CollectiveCall exchange = call;
  exchange.kind = CollectiveCall::Kind::kExchange;
  exchange.send.assign(call.members.size(), call.send[0]);
  return exchange;
}

CollectiveCall SumOfWholes(const CollectiveCall& call) {
  CollectiveCall sum = call;
  sum.kind = CollectiveCall::Kind::kReduceScatter;
  sum.send.assign(call.members.size(), call.send[0]);
  return sum;
}

std::pair<CollectiveCall, CollectiveCall> PiecesOfAllReduce(const CollectiveCall& call) {
  const int n = static_cast<int>(call.members.size());
  const int64_t element = kernels::SizeOf(call.send_dtype);
  const int64_t result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t elements = call.send[0].bytes() / element;
  CollectiveCall sum = call;
  sum.kind = CollectiveCall::Kind::kReduceScatter;
  const int64_t piece = graph::AllReducePiece(elements, n);
  const auto part = [&](const Region& whole, int i, int64_t size) {
    const int64_t begin = std::min(elements, i * piece), end = std::min(elements, begin + piece);
    return Flat(whole.data + begin * size, (end - begin) * size);
  };
  CollectiveCall gather = call;
  gather.kind = CollectiveCall::Kind::kAllGather;
  sum.send.clear();
  gather.receive.clear();
  for (int i = 0; i < n; ++i) {
    sum.send.push_back(part(call.send[0], i, element));
    gather.receive.push_back(part(call.receive[0], i, result_element));
  }
  sum.receive = {gather.receive[call.me]};
  gather.send = sum.receive;
  return {std::move(sum), std::move(gather)};
}

}  // namespace tacc::worker
