#include "worker/rank/cuda/collectives/step_queue.h"

#include <algorithm>
#include <functional>

#include "graph/ir/collective_limits.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

using Kind = CollectiveCall::Kind;

constexpr int64_t kSlotAlignment = 256;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Parts, equal and in order, lie side by side in so many rows one behind the other; 0: they do not.
int64_t NumRows(const std::vector<Region>& parts) {
  const Region& first = parts[0];
  if (first.bytes() == 0) return 0;
  const int64_t rows = first.IsContiguous() ? 1 : first.runs, row_bytes = first.bytes() / rows;
  for (size_t i = 0; i < parts.size(); ++i) {
    const Region& part = parts[i];
    const bool lies_so = rows == 1
                             ? part.IsContiguous()
                             : part.runs == rows && part.stride_bytes == static_cast<int64_t>(parts.size()) * row_bytes;
    if (!lies_so || part.bytes() != first.bytes() || part.data != first.data + static_cast<int64_t>(i) * row_bytes)
      return 0;
  }
  return rows;
}

// In so many rows the library takes it as it lies in memory; 0: it is packed. The same on all members: they have values
// of the same shape, and parts that are equal fill theirs.
int64_t DirectRows(const CollectiveCall& call) {
  if (call.kind == Kind::kAllReduce) return 1;
  const bool gathers = call.kind == Kind::kAllGather;
  const Region& mine = gathers ? call.send[0] : call.receive[0];
  const int64_t rows = NumRows(gathers ? call.receive : call.send);
  return rows <= graph::kMaxRowsInPlace && mine.IsContiguous() ? rows : 0;
}

int64_t LargestBytes(const std::vector<Region>& parts) {
  int64_t largest = 0;
  for (const Region& part : parts) largest = std::max(largest, part.bytes());
  return largest;
}

// Of those for each member, and two more: the own part and the result of a sum.
int64_t NumSlots(size_t num_members) { return 3 * static_cast<int64_t>(num_members) + 2; }

// Queues what `queue` queues as one group, which is closed even after an error.
absl::Status Group(GroupedMessages& messages, const std::function<absl::Status()>& queue) {
  TACC_RETURN_IF_ERROR(messages.Begin());
  absl::Status status = queue();
  status.Update(messages.End());
  return status;
}

// Bytes of round `round` of a message cut into chunks.
int64_t InRound(int64_t bytes, int64_t round, int64_t chunk) {
  return std::clamp<int64_t>(bytes - round * chunk, 0, chunk);
}

}  // namespace

int64_t StepQueue::ChunkBytes(size_t num_members) const {
  return std::max(staging_bytes_ / NumSlots(num_members) / kSlotAlignment * kSlotAlignment, kSlotAlignment);
}

int64_t StepQueue::SlotBytes(const CollectiveCall& call) const {
  int64_t largest = 0;
  for (const std::vector<Region>* regions : {&call.send, &call.receive}) {
    for (const Region& region : *regions) largest = std::max(largest, region.bytes());
  }
  return std::min(ChunkBytes(call.members.size()), CeilDiv(largest, kSlotAlignment) * kSlotAlignment);
}

int64_t StepQueue::StagingBytes(const CollectiveStep& step) const {
  if (step.call.is_message() || (step.group != nullptr && DirectRows(step.call) > 0)) return 0;
  return NumSlots(step.call.members.size()) * SlotBytes(step.call);
}

absl::Status StepQueue::Add(const CollectiveStep& step, char* staging, CommunicationStream& stream) const {
  const CollectiveCall& call = step.call;
  if (step.group != nullptr) {
    switch (call.kind) {
      case Kind::kAllReduce:
        return step.group->AllReduce(call.send[0].data, call.receive[0].data,
                                     call.send[0].bytes() / kernels::SizeOf(call.send_dtype), call.send_dtype);
      case Kind::kAllGather:
        return AllGather(call, *step.group, staging, stream);
      default:
        return ReduceScatter(call, *step.group, staging, stream);
    }
  }
  if (call.is_message()) return OneMessage(call, stream);
  if (call.kind == Kind::kExchange) return Exchange(call, staging, stream);
  if (call.kind == Kind::kAllReduce) return SmallAllReduce(call, *step.levels, staging, stream);
  if (step.levels.has_value()) return ReduceScatter(call, *step.levels, staging, stream);
  return ReduceScatter(call, staging, stream);
}

absl::Status StepQueue::OneMessage(const CollectiveCall& call, CommunicationStream& stream) const {
  const int peer = call.members[0];
  GroupedMessages& messages = stream.messages();
  return Group(messages, [&] {
    return call.kind == Kind::kSend ? messages.Send(peer, call.send[0].data, call.send[0].bytes())
                                    : messages.Receive(peer, call.receive[0].data, call.receive[0].bytes());
  });
}

// Where it is not direct all parts are as long as the longest in each round, and what is beyond a shorter one's end
// moves too: the library takes equal parts only.
absl::Status StepQueue::AllGather(const CollectiveCall& call, GroupCollectives& group, char* staging,
                                  CommunicationStream& stream) const {
  const Region& mine = call.send[0];
  if (const int64_t rows = DirectRows(call); rows > 0)
    return group.AllGather(mine.data, call.receive[0].data, mine.bytes() / rows, rows);
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size()), longest = LargestBytes(call.receive);
  if (const Region& to = call.receive[call.me]; mine.bytes() > 0 && mine.data != to.data)
    TACC_RETURN_IF_ERROR(stream.Copy(mine, to));
  for (int64_t at = 0, round = 0; at < longest; at += chunk, ++round) {
    const int64_t count = InRound(longest, round, chunk);
    const auto stage = [&](int i) { return staging + i * count; };
    if (const int64_t bytes = InRound(mine.bytes(), round, chunk); bytes > 0)
      TACC_RETURN_IF_ERROR(stream.Pack(mine, at, bytes, stage(call.me)));
    TACC_RETURN_IF_ERROR(group.AllGather(stage(call.me), stage(0), count, /*rows=*/1));
    for (int i = 0; i < n; ++i) {
      const int64_t bytes = InRound(call.receive[i].bytes(), round, chunk);
      if (i != call.me && bytes > 0) TACC_RETURN_IF_ERROR(stream.Unpack(stage(i), at, bytes, call.receive[i]));
    }
  }
  return absl::OkStatus();
}

// As AllGather.
absl::Status StepQueue::ReduceScatter(const CollectiveCall& call, GroupCollectives& group, char* staging,
                                      CommunicationStream& stream) const {
  const Region& mine = call.receive[0];
  const int64_t element = kernels::SizeOf(call.send_dtype);
  if (const int64_t rows = DirectRows(call); rows > 0)
    return group.ReduceScatter(call.send[0].data, mine.data, mine.bytes() / element / rows, call.send_dtype, rows);
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size()) / element * element, longest = LargestBytes(call.send);
  for (int64_t at = 0, round = 0; at < longest; at += chunk, ++round) {
    const int64_t count = InRound(longest, round, chunk);
    const auto stage = [&](int i) { return staging + i * count; };
    for (int i = 0; i < n; ++i) {
      if (const int64_t bytes = InRound(call.send[i].bytes(), round, chunk); bytes > 0)
        TACC_RETURN_IF_ERROR(stream.Pack(call.send[i], at, bytes, stage(i)));
    }
    TACC_RETURN_IF_ERROR(group.ReduceScatter(stage(0), stage(n), count / element, call.send_dtype, /*rows=*/1));
    if (const int64_t bytes = InRound(mine.bytes(), round, chunk); bytes > 0)
      TACC_RETURN_IF_ERROR(stream.Unpack(stage(n), at, bytes, mine));
  }
  return absl::OkStatus();
}

// Staging: slots [0, n) received, [n, 2n) packed to send.
absl::Status StepQueue::Exchange(const CollectiveCall& call, char* staging, CommunicationStream& stream) const {
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size()), slot = SlotBytes(call);
  const auto stage = [&](int index) { return staging + index * slot; };
  const Region &from = call.send[call.me], &to = call.receive[call.me];
  if (from.bytes() > 0 && from.data != to.data) TACC_RETURN_IF_ERROR(stream.Copy(from, to));
  int64_t rounds = 0;
  for (int i = 0; i < n; ++i) {
    if (i != call.me)
      rounds = std::max(rounds, CeilDiv(std::max(call.send[i].bytes(), call.receive[i].bytes()), chunk));
  }
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t at = round * chunk;
    const auto is_staged = [&](int i, const Region& region) {
      return i != call.me && !region.IsContiguous() && InRound(region.bytes(), round, chunk) > 0;
    };
    for (int i = 0; i < n; ++i) {
      const Region& region = call.send[i];
      if (is_staged(i, region))
        TACC_RETURN_IF_ERROR(stream.Pack(region, at, InRound(region.bytes(), round, chunk), stage(n + i)));
    }
    TACC_RETURN_IF_ERROR(Group(stream.messages(), [&]() -> absl::Status {
      for (int i = 0; i < n; ++i) {
        if (i == call.me) continue;
        const Region &out = call.send[i], &in = call.receive[i];
        if (const int64_t bytes = InRound(out.bytes(), round, chunk); bytes > 0) {
          const char* data = out.IsContiguous() ? out.data + at : stage(n + i);
          TACC_RETURN_IF_ERROR(stream.messages().Send(call.members[i], data, bytes));
        }
        if (const int64_t bytes = InRound(in.bytes(), round, chunk); bytes > 0) {
          char* data = in.IsContiguous() ? in.data + at : stage(i);
          TACC_RETURN_IF_ERROR(stream.messages().Receive(call.members[i], data, bytes));
        }
      }
      return absl::OkStatus();
    }));
    for (int i = 0; i < n; ++i) {
      const Region& region = call.receive[i];
      if (is_staged(i, region))
        TACC_RETURN_IF_ERROR(stream.Unpack(stage(i), at, InRound(region.bytes(), round, chunk), region));
    }
  }
  return absl::OkStatus();
}

// Staging: slots [0, n) received, [n, 2n) packed to send, 2n the own part, 2n + 1 the sum.
absl::Status StepQueue::ReduceScatter(const CollectiveCall& call, char* staging, CommunicationStream& stream) const {
  const int n = static_cast<int>(call.members.size());
  const int64_t element = kernels::SizeOf(call.send_dtype), result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t slot = SlotBytes(call);
  const auto stage = [&](int index) { return staging + index * slot; };
  // The same on all ranks, whose parts may be smaller.
  const int64_t chunk = ChunkBytes(call.members.size()) / std::max(element, result_element);
  const Region &result = call.receive[0], &own = call.send[call.me];
  const int64_t my_elements = result.bytes() / result_element;
  int64_t rounds = CeilDiv(my_elements, chunk);
  for (const Region& region : call.send) rounds = std::max(rounds, CeilDiv(region.bytes() / element, chunk));
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t first = round * chunk, elements = InRound(my_elements, round, chunk);
    for (int i = 0; i < n; ++i) {
      const Region& region = call.send[i];
      const int64_t count = InRound(region.bytes() / element, round, chunk);
      if (region.IsContiguous() || count == 0) continue;
      TACC_RETURN_IF_ERROR(stream.Pack(region, first * element, count * element, stage(i == call.me ? 2 * n : n + i)));
    }
    TACC_RETURN_IF_ERROR(Group(stream.messages(), [&]() -> absl::Status {
      for (int i = 0; i < n; ++i) {
        if (i == call.me) continue;
        const Region& region = call.send[i];
        if (const int64_t count = InRound(region.bytes() / element, round, chunk); count > 0) {
          const char* data = region.IsContiguous() ? region.data + first * element : stage(n + i);
          TACC_RETURN_IF_ERROR(stream.messages().Send(call.members[i], data, count * element));
        }
        if (elements > 0)
          TACC_RETURN_IF_ERROR(stream.messages().Receive(call.members[i], stage(i), elements * element));
      }
      return absl::OkStatus();
    }));
    if (elements == 0) continue;
    CommunicationStream::SumRequest sum;
    sum.others = stage(0);
    sum.stride_bytes = slot;
    sum.own = own.IsContiguous() ? own.data + first * element : stage(2 * n);
    sum.me = call.me;
    sum.n = n;
    sum.dtype = call.send_dtype;
    sum.elements = elements;
    sum.sum = result.IsContiguous() ? result.data + first * result_element : stage(2 * n + 1);
    sum.sum_dtype = call.receive_dtype;
    TACC_RETURN_IF_ERROR(stream.Sum(sum));
    if (!result.IsContiguous())
      TACC_RETURN_IF_ERROR(stream.Unpack(sum.sum, first * result_element, elements * result_element, result));
  }
  return absl::OkStatus();
}

// As Collectives', round by round. Staging: of what place j of this machine sends for machine k slot k * mates + j;
// then what is packed to send, in the same order; then a sum for each machine, and the result.
absl::Status StepQueue::ReduceScatter(const CollectiveCall& call, const TwoLevels& levels, char* staging,
                                      CommunicationStream& stream) const {
  const int machines = levels.num_machines(), mates = levels.num_mates();
  const int packed = machines * mates, partial = 2 * packed, sum_slot = partial + machines;
  const int64_t element = kernels::SizeOf(call.send_dtype), result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t slot = SlotBytes(call);
  const int64_t chunk = ChunkBytes(call.members.size()) / std::max(element, result_element);
  const auto stage = [&](int index) { return staging + index * slot; };
  const auto member = [&](int k, int j) { return call.members[levels.Member(k, j)]; };
  const Region& result = call.receive[0];
  int64_t rounds = 0;
  for (const Region& region : call.send) rounds = std::max(rounds, CeilDiv(region.bytes() / element, chunk));
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t first = round * chunk;
    const auto part = [&](int k, int j) -> const Region& { return call.send[levels.Member(k, j)]; };
    const auto count = [&](int k, int j) { return InRound(part(k, j).bytes() / element, round, chunk); };
    const auto own = [&](int k, int j) -> const char* {
      return part(k, j).IsContiguous() ? part(k, j).data + first * element : stage(packed + k * mates + j);
    };
    for (int k = 0; k < machines; ++k) {
      for (int j = 0; j < mates; ++j) {
        if (part(k, j).IsContiguous() || count(k, j) == 0) continue;
        TACC_RETURN_IF_ERROR(
            stream.Pack(part(k, j), first * element, count(k, j) * element, stage(packed + k * mates + j)));
      }
    }
    TACC_RETURN_IF_ERROR(Group(stream.messages(), [&]() -> absl::Status {
      for (int j = 0; j < mates; ++j) {
        if (j == levels.place) continue;
        for (int k = 0; k < machines; ++k) {
          if (count(k, j) > 0)
            TACC_RETURN_IF_ERROR(stream.messages().Send(member(levels.machine, j), own(k, j), count(k, j) * element));
        }
        for (int k = 0; k < machines; ++k) {
          if (const int64_t elements = count(k, levels.place); elements > 0)
            TACC_RETURN_IF_ERROR(
                stream.messages().Receive(member(levels.machine, j), stage(k * mates + j), elements * element));
        }
      }
      return absl::OkStatus();
    }));
    // Sums that are sent lie where this machine's first mate's parts do, which have been sent and added then.
    const auto sum_of = [&](int k) { return stage(k == levels.machine ? partial + k : packed + k * mates); };
    CommunicationStream::SumRequest sum;
    sum.stride_bytes = slot;
    sum.dtype = call.send_dtype;
    for (int k = 0; k < machines; ++k) {
      if (count(k, levels.place) == 0) continue;
      sum.others = stage(k * mates);
      sum.own = own(k, levels.place);
      sum.me = levels.place;
      sum.n = mates;
      sum.elements = count(k, levels.place);
      sum.sum = sum_of(k);
      sum.sum_dtype = call.send_dtype;
      TACC_RETURN_IF_ERROR(stream.Sum(sum));
    }
    const int64_t elements = count(levels.machine, levels.place);
    TACC_RETURN_IF_ERROR(Group(stream.messages(), [&]() -> absl::Status {
      for (int k = 0; k < machines; ++k) {
        if (k == levels.machine) continue;
        const int peer = member(k, levels.place);
        if (const int64_t sent = count(k, levels.place); sent > 0)
          TACC_RETURN_IF_ERROR(stream.messages().Send(peer, sum_of(k), sent * element));
        if (elements > 0) TACC_RETURN_IF_ERROR(stream.messages().Receive(peer, stage(partial + k), elements * element));
      }
      return absl::OkStatus();
    }));
    if (elements == 0) continue;
    sum.others = stage(partial);
    sum.own = stage(partial + levels.machine);
    sum.me = levels.machine;
    sum.n = machines;
    sum.elements = elements;
    sum.sum = result.IsContiguous() ? result.data + first * result_element : stage(sum_slot);
    sum.sum_dtype = call.receive_dtype;
    TACC_RETURN_IF_ERROR(stream.Sum(sum));
    if (!result.IsContiguous())
      TACC_RETURN_IF_ERROR(stream.Unpack(sum.sum, first * result_element, elements * result_element, result));
  }
  return absl::OkStatus();
}

// All have all of a level. Staging: parts of mates, then of machines, this one's sum among them.
absl::Status StepQueue::SmallAllReduce(const CollectiveCall& call, const TwoLevels& levels, char* staging,
                                       CommunicationStream& stream) const {
  const int64_t slot = SlotBytes(call), bytes = call.send[0].bytes();
  char* const of_mates = staging;
  char* const of_machines = of_mates + levels.num_mates() * slot;
  char* const mine = of_machines + levels.machine * slot;
  // Sends `data` to others[i] for i other than `me`, whose parts come to `slots` in their order.
  const auto share = [&](const char* data, int n, int me, char* slots, const auto& other) {
    return Group(stream.messages(), [&]() -> absl::Status {
      for (int i = 0; i < n; ++i) {
        if (i == me) continue;
        TACC_RETURN_IF_ERROR(stream.messages().Send(other(i), data, bytes));
        TACC_RETURN_IF_ERROR(stream.messages().Receive(other(i), slots + i * slot, bytes));
      }
      return absl::OkStatus();
    });
  };
  TACC_RETURN_IF_ERROR(share(call.send[0].data, levels.num_mates(), levels.place, of_mates,
                             [&](int j) { return call.members[levels.Member(levels.machine, j)]; }));
  CommunicationStream::SumRequest sum;
  sum.stride_bytes = slot;
  sum.dtype = call.send_dtype;
  sum.elements = bytes / kernels::SizeOf(call.send_dtype);
  sum.others = of_mates;
  sum.own = call.send[0].data;
  sum.me = levels.place;
  sum.n = levels.num_mates();
  sum.sum = mine;
  sum.sum_dtype = call.send_dtype;
  TACC_RETURN_IF_ERROR(stream.Sum(sum));
  TACC_RETURN_IF_ERROR(share(mine, levels.num_machines(), levels.machine, of_machines,
                             [&](int k) { return call.members[levels.Member(k, levels.place)]; }));
  sum.others = of_machines;
  sum.own = mine;
  sum.me = levels.machine;
  sum.n = levels.num_machines();
  sum.sum = call.receive[0].data;
  sum.sum_dtype = call.receive_dtype;
  return stream.Sum(sum);
}

}  // namespace tacc::worker
