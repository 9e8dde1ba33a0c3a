#include "worker/rank/collectives/collective_engine.h"

#include <algorithm>
#include <utility>

#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/collective_steps.h"
#include "worker/rank/collectives/doubling_all_gather.h"
#include "worker/rank/collectives/sum_kernels.h"

namespace tacc::worker {
namespace {

constexpr uint32_t kTag = 1;  // One for all collectives: messages between two ranks keep their order.
constexpr uint32_t kFirstChannelTag = 2;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

absl::Status CollectiveEngine::WaitAll(Messages& messages) {
  for (std::unique_ptr<Message>& message : messages) TACC_RETURN_IF_ERROR(message->Wait());
  messages.clear();
  return absl::OkStatus();
}

void CollectiveEngine::Connect(Transport* transport) {
  transport_ = transport;
  for (int rank = 1; rank < transport->world(); ++rank)
    has_machines_ = has_machines_ || transport->machine_of(rank) != transport->machine_of(0);
}

absl::Status CollectiveEngine::Execute(const CollectiveCall& call) {
  switch (call.kind) {
    case CollectiveCall::Kind::kExchange:
      return Exchange(call);
    case CollectiveCall::Kind::kAllGather:
      return AllGather(call);
    case CollectiveCall::Kind::kReduceScatter:
      return ReduceScatter(call);
    case CollectiveCall::Kind::kAllReduce:
      return AllReduce(call);
    case CollectiveCall::Kind::kSend:
    case CollectiveCall::Kind::kReceive:
      return absl::InternalError("a message is posted, not executed");
  }
  return absl::InternalError("unknown kind of collective");
}

absl::StatusOr<std::unique_ptr<Message>> CollectiveEngine::Post(const CollectiveCall& call) {
  const int peer = call.members[0];
  const uint32_t tag = kFirstChannelTag + call.channel;
  if (call.kind == CollectiveCall::Kind::kReceive) {
    return transport_->Receive(peer, tag, call.receive[0].data, call.receive[0].bytes());
  }
  bytes_sent_ += call.send[0].bytes();
  return transport_->Send(peer, tag, call.send[0].data, call.send[0].bytes());
}

bool CollectiveEngine::IsPlain(const CollectiveCall& call) const {
  if (call.kind == CollectiveCall::Kind::kAllGather)
    return !GathersByDoubling(call) && !LevelsOf(call).has_value() && IsContiguous(call);
  return call.kind == CollectiveCall::Kind::kExchange && IsContiguous(call);
}

absl::Status CollectiveEngine::Begin(const CollectiveCall& call, Messages& messages) {
  if (call.kind == CollectiveCall::Kind::kExchange) return PostContiguous(call, messages);
  return PostContiguous(ExchangeOf(call), messages);
}

bool CollectiveEngine::IsContiguous(const CollectiveCall& call) {
  const auto contiguous = [](const Region& region) { return region.IsContiguous(); };
  return std::all_of(call.send.begin(), call.send.end(), contiguous) &&
         std::all_of(call.receive.begin(), call.receive.end(), contiguous);
}

std::optional<TwoLevels> CollectiveEngine::LevelsOf(const CollectiveCall& call) const {
  if (!has_machines_) return std::nullopt;
  return FindTwoLevels(call.members, call.me, [this](int rank) { return machine_of(rank); });
}

int64_t CollectiveEngine::ChunkBytes(size_t num_members) {
  return std::max<int64_t>(kStagingBytes / (3 * static_cast<int64_t>(num_members) + 2) / 64 * 64, 64);
}

absl::Status CollectiveEngine::Send(int peer, const char* data, int64_t bytes, Messages& messages) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Message> message, transport_->Send(peer, kTag, data, bytes));
  messages.push_back(std::move(message));
  bytes_sent_ += bytes;
  return absl::OkStatus();
}

absl::Status CollectiveEngine::Receive(int peer, char* data, int64_t bytes, Messages& messages) {
  TACC_ASSIGN_OR_RETURN(std::unique_ptr<Message> message, transport_->Receive(peer, kTag, data, bytes));
  messages.push_back(std::move(message));
  return absl::OkStatus();
}

absl::Status CollectiveEngine::PostContiguous(const CollectiveCall& call, Messages& messages) {
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size());
  for (int i = 0; i < n; ++i) {
    const Region& to = call.receive[i];
    if (i == call.me || !to.IsContiguous()) continue;
    for (int64_t at = 0; at < to.bytes(); at += chunk) {
      TACC_RETURN_IF_ERROR(Receive(call.members[i], to.data + at, std::min(chunk, to.bytes() - at), messages));
    }
  }
  // Each rank starts with its right neighbour, so that not all send to the same one first.
  for (int k = 1; k < n; ++k) {
    const int i = (call.me + k) % n;
    const Region& from = call.send[i];
    if (!from.IsContiguous()) continue;
    for (int64_t at = 0; at < from.bytes(); at += chunk) {
      TACC_RETURN_IF_ERROR(Send(call.members[i], from.data + at, std::min(chunk, from.bytes() - at), messages));
    }
  }
  if (call.send[call.me].bytes() > 0) CopyRegion(call.send[call.me], call.receive[call.me]);
  return absl::OkStatus();
}

absl::Status CollectiveEngine::Exchange(const CollectiveCall& call) {
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size());
  Messages whole;
  TACC_RETURN_IF_ERROR(PostContiguous(call, whole));
  int64_t rounds = 0;
  for (int i = 0; i < n; ++i) {
    for (const Region* region : {&call.send[i], &call.receive[i]}) {
      if (i != call.me && !region->IsContiguous()) rounds = std::max(rounds, CeilDiv(region->bytes(), chunk));
    }
  }
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t at = round * chunk;
    Messages messages;
    const auto strided = [&](const Region& region) { return !region.IsContiguous() && region.bytes() > at; };
    for (int i = 0; i < n; ++i) {
      if (i == call.me || !strided(call.receive[i])) continue;
      TACC_RETURN_IF_ERROR(
          Receive(call.members[i], Stage(i, chunk), std::min(chunk, call.receive[i].bytes() - at), messages));
    }
    for (int i = 0; i < n; ++i) {
      if (i == call.me || !strided(call.send[i])) continue;
      const int64_t bytes = std::min(chunk, call.send[i].bytes() - at);
      PackRegion(call.send[i], at, bytes, Stage(n + i, chunk));
      TACC_RETURN_IF_ERROR(Send(call.members[i], Stage(n + i, chunk), bytes, messages));
    }
    TACC_RETURN_IF_ERROR(WaitAll(messages));
    for (int i = 0; i < n; ++i) {
      if (i == call.me || !strided(call.receive[i])) continue;
      UnpackRegion(Stage(i, chunk), at, std::min(chunk, call.receive[i].bytes() - at), call.receive[i]);
    }
  }
  return WaitAll(whole);
}

absl::Status CollectiveEngine::AllGather(const CollectiveCall& call) {
  if (GathersByDoubling(call)) {
    const int n = static_cast<int>(call.members.size());
    const int64_t bytes = call.send[0].bytes();
    PackRegion(call.send[0], 0, bytes, Stage(0, bytes));
    for (const CollectiveCall& round : DoublingRounds(call, Stage(0, bytes))) TACC_RETURN_IF_ERROR(Exchange(round));
    for (int i = 0; i < n; ++i) UnpackRegion(Stage(i, bytes), 0, bytes, call.receive[(call.me + i) % n]);
    return absl::OkStatus();
  }
  const std::optional<TwoLevels> levels = LevelsOf(call);
  if (!levels.has_value()) return Exchange(ExchangeOf(call));
  for (const std::vector<CollectiveCall>& level : LevelsOfAllGather(call, *levels)) {
    // What needs no staging is under way together.
    Messages messages;
    for (const CollectiveCall& step : level) {
      TACC_RETURN_IF_ERROR(IsContiguous(step) ? PostContiguous(step, messages) : Exchange(step));
    }
    TACC_RETURN_IF_ERROR(WaitAll(messages));
  }
  return absl::OkStatus();
}

absl::Status CollectiveEngine::ReduceScatter(const CollectiveCall& call) {
  if (const std::optional<TwoLevels> levels = LevelsOf(call)) return ReduceScatter(call, *levels);
  const int n = static_cast<int>(call.members.size());
  const kernels::DType sum_type = SumType(call.send_dtype);
  const int64_t element = kernels::SizeOf(call.send_dtype);
  const int64_t sum_element = kernels::SizeOf(sum_type);
  const int64_t result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t chunk = ChunkBytes(call.members.size());
  const int64_t chunk_elements = chunk / std::max(sum_element, element);
  const Region& result = call.receive[0];
  const int64_t my_elements = result.bytes() / result_element;
  int64_t rounds = CeilDiv(my_elements, chunk_elements);
  for (int i = 0; i < n; ++i) rounds = std::max(rounds, CeilDiv(call.send[i].bytes() / element, chunk_elements));

  const auto count = [&](int64_t elements, int64_t round) {
    return std::clamp<int64_t>(elements - round * chunk_elements, 0, chunk_elements);
  };
  // Staging: [0, n) and [n, 2n) received in even and odd rounds, [2n, 3n) packed to send, 3n the own part, 3n + 1 the
  // sum.
  Messages receives[2];
  const auto post_receives = [&](int64_t round) -> absl::Status {
    const int64_t elements = count(my_elements, round);
    if (elements == 0) return absl::OkStatus();
    for (int i = 0; i < n; ++i) {
      if (i == call.me) continue;
      TACC_RETURN_IF_ERROR(Receive(call.members[i], Stage(static_cast<int>(round % 2) * n + i, chunk),
                                   elements * element, receives[round % 2]));
    }
    return absl::OkStatus();
  };
  TACC_RETURN_IF_ERROR(post_receives(0));
  for (int64_t round = 0; round < rounds; ++round) {
    if (round + 1 < rounds) TACC_RETURN_IF_ERROR(post_receives(round + 1));
    Messages sends;
    for (int k = 1; k < n; ++k) {
      const int i = (call.me + k) % n;
      const Region& from = call.send[i];
      const int64_t bytes = count(from.bytes() / element, round) * element;
      if (bytes == 0) continue;
      const int64_t at = round * chunk_elements * element;
      const char* data = from.data + at;
      if (!from.IsContiguous()) {
        PackRegion(from, at, bytes, Stage(2 * n + i, chunk));
        data = Stage(2 * n + i, chunk);
      }
      TACC_RETURN_IF_ERROR(Send(call.members[i], data, bytes, sends));
    }
    TACC_RETURN_IF_ERROR(WaitAll(receives[round % 2]));
    // A result over the operand (small all-reduces) must not overtake its own sends.
    TACC_RETURN_IF_ERROR(WaitAll(sends));
    const int64_t elements = count(my_elements, round);
    if (elements == 0) continue;
    const int64_t first = round * chunk_elements;
    const Region& own = call.send[call.me];
    const char* own_data = own.data + first * element;
    if (!own.IsContiguous()) {
      PackRegion(own, first * element, elements * element, Stage(3 * n, chunk));
      own_data = Stage(3 * n, chunk);
    }
    // The accumulator may be the result itself, but not while the own part that it covers is still to be added.
    const bool direct = result.IsContiguous() && call.receive_dtype == sum_type &&
                        (call.me == 0 || own_data != result.data + first * element);
    char* sum = direct ? result.data + first * sum_element : Stage(3 * n + 1, chunk);
    for (int i = 0; i < n; ++i) {
      const char* x = i == call.me ? own_data : Stage(static_cast<int>(round % 2) * n + i, chunk);
      if (i > 0) {
        AddElements(call.send_dtype, x, sum, elements);
      } else if (x != sum) {
        CopyElements(call.send_dtype, x, sum, elements);
      }
    }
    if (direct) continue;
    const char* rounded = sum;
    if (call.receive_dtype != sum_type) {
      RoundElements(sum_type, sum, call.receive_dtype, Stage(3 * n, chunk),
                    elements);  // The own part has been added.
      rounded = Stage(3 * n, chunk);
    }
    UnpackRegion(rounded, first * result_element, elements * result_element, result);
  }
  return absl::OkStatus();
}

absl::Status CollectiveEngine::ReduceScatter(const CollectiveCall& call, const TwoLevels& levels) {
  const int machines = levels.num_machines(), mates = levels.num_mates();
  const int64_t element = kernels::SizeOf(call.send_dtype);
  const int64_t chunk = ChunkBytes(call.members.size());
  const int64_t result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t chunk_elements =
      chunk / std::max({static_cast<int64_t>(kernels::SizeOf(SumType(call.send_dtype))), element, result_element});
  int64_t rounds = 0;
  for (const Region& region : call.send) rounds = std::max(rounds, CeilDiv(region.bytes() / element, chunk_elements));
  // Staging, in chunks: from mate j for machine k at k * mates + j, own parts among them; packed to send behind, then
  // what comes from machines, the own sum among them, and a sum.
  const int packed = machines * mates, partial = 2 * packed, sum_slot = partial + machines;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t first = round * chunk_elements;
    const auto count = [&](int machine, int place) {
      const int64_t elements = call.send[levels.Member(machine, place)].bytes() / element;
      return std::clamp<int64_t>(elements - first, 0, chunk_elements);
    };
    // The part of machine k's place j, packed where it is not contiguous.
    const auto own = [&](int k, int j) -> const char* {
      const Region& region = call.send[levels.Member(k, j)];
      if (region.IsContiguous()) return region.data + first * element;
      char* const at = Stage(packed + k * mates + j, chunk);
      PackRegion(region, first * element, count(k, j) * element, at);
      return at;
    };
    Messages messages;
    std::vector<const char*> mine(machines);
    for (int k = 0; k < machines; ++k) {
      for (int j = 0; j < mates; ++j) {
        if (j == levels.place || count(k, levels.place) == 0) continue;
        TACC_RETURN_IF_ERROR(Receive(call.members[levels.Member(levels.machine, j)], Stage(k * mates + j, chunk),
                                     count(k, levels.place) * element, messages));
      }
    }
    for (int k = 0; k < machines; ++k) {
      if (count(k, levels.place) > 0) mine[k] = own(k, levels.place);
      for (int i = 1; i < mates; ++i) {
        const int j = (levels.place + i) % mates;
        if (count(k, j) == 0) continue;
        TACC_RETURN_IF_ERROR(
            Send(call.members[levels.Member(levels.machine, j)], own(k, j), count(k, j) * element, messages));
      }
    }
    TACC_RETURN_IF_ERROR(WaitAll(messages));
    const int64_t elements = count(levels.machine, levels.place);
    for (int k = 0; k < machines; ++k) {
      if (k == levels.machine || elements == 0) continue;
      TACC_RETURN_IF_ERROR(Receive(call.members[levels.Member(k, levels.place)], Stage(partial + k, chunk),
                                   elements * element, messages));
    }
    for (int i = 0; i < machines; ++i) {
      const int k = (levels.machine + i) % machines;  // The own sum first, which nobody waits for.
      std::vector<const char*> parts;
      for (int j = 0; j < mates; ++j) parts.push_back(j == levels.place ? mine[k] : Stage(k * mates + j, chunk));
      // A sum that is sent has a place of its own until all are: the first mate's part, which has been added.
      char* const to = k == levels.machine ? Stage(partial + k, chunk) : Stage(packed + k * mates, chunk);
      SumInOrder(call.send_dtype, parts, count(k, levels.place), Stage(sum_slot, chunk), call.send_dtype, to);
      if (k == levels.machine || count(k, levels.place) == 0) continue;
      TACC_RETURN_IF_ERROR(
          Send(call.members[levels.Member(k, levels.place)], to, count(k, levels.place) * element, messages));
    }
    TACC_RETURN_IF_ERROR(WaitAll(messages));
    if (elements == 0) continue;
    std::vector<const char*> sums;
    for (int k = 0; k < machines; ++k) sums.push_back(Stage(partial + k, chunk));
    // All that was received has been added.
    SumInOrder(call.send_dtype, sums, elements, Stage(sum_slot, chunk), call.receive_dtype, Stage(0, chunk));
    UnpackRegion(Stage(0, chunk), first * result_element, elements * result_element, call.receive[0]);
  }
  return absl::OkStatus();
}

void CollectiveEngine::SumInOrder(kernels::DType dtype, const std::vector<const char*>& parts, int64_t elements,
                                  char* sum, kernels::DType to_dtype, char* to) {
  if (elements == 0) return;
  CopyElements(dtype, parts[0], sum, elements);
  for (size_t i = 1; i < parts.size(); ++i) AddElements(dtype, parts[i], sum, elements);
  RoundElements(SumType(dtype), sum, to_dtype, to, elements);
}

absl::Status CollectiveEngine::SmallAllReduce(const CollectiveCall& call, const TwoLevels& levels) {
  CollectiveCall inside = call, across = call;
  inside.members.clear();
  across.members.clear();
  for (int index : levels.machines[levels.machine]) inside.members.push_back(call.members[index]);
  for (int k = 0; k < levels.num_machines(); ++k)
    across.members.push_back(call.members[levels.Member(k, levels.place)]);
  inside.me = levels.place;
  across.me = levels.machine;
  inside.kind = across.kind = CollectiveCall::Kind::kReduceScatter;
  const Region sum = Flat(small_sum_, call.send[0].bytes());
  inside.receive_dtype = call.send_dtype;
  inside.receive = {sum};
  inside.send.assign(inside.members.size(), call.send[0]);
  across.send.assign(across.members.size(), sum);
  TACC_RETURN_IF_ERROR(ReduceScatter(inside));
  return ReduceScatter(across);
}

absl::Status CollectiveEngine::AllReduce(const CollectiveCall& call) {
  const int n = static_cast<int>(call.members.size());
  const int64_t element = kernels::SizeOf(call.send_dtype);
  const int64_t elements = call.send[0].bytes() / element;
  const int num_machines = has_machines_ ? NumMachines(call.members, [this](int rank) { return machine_of(rank); }) : 1;
  // All of it is one chunk then: 3 n + 2 of them, of at most 8 bytes an element, are within the staging.
  const bool is_small = elements <= graph::WholeAllReduceElements(n, num_machines);
  if (const std::optional<TwoLevels> levels = LevelsOf(call); levels.has_value()) {
    if (is_small) return SmallAllReduce(call, *levels);
    if (call.send_dtype == call.receive_dtype) {
      for (const CollectiveCall& step : LevelsOfAllReduce(call, *levels)) TACC_RETURN_IF_ERROR(Execute(step));
      return absl::OkStatus();
    }
  }
  if (n == 1 || is_small) return ReduceScatter(SumOfWholes(call));
  const auto [sum, gather] = PiecesOfAllReduce(call);
  TACC_RETURN_IF_ERROR(ReduceScatter(sum));
  return AllGather(gather);
}

}  // namespace tacc::worker
