#include "worker/rank/cuda/collectives/device_collectives.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/collective_limits.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/device/device_clock.h"

namespace tacc::worker {
namespace {

using Kind = CollectiveCall::Kind;

constexpr int64_t kSlotAlignment = 256;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsMessage(const CollectiveCall& call) { return call.kind == Kind::kSend || call.kind == Kind::kReceive; }

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

// What this rank sends to others: of the library's as in a ring; of a sum in two levels to mates, and each machine but
// its own one sum.
int64_t SentBytes(const CollectiveCall& call, const std::optional<TwoLevels>& levels, bool is_library) {
  int64_t bytes = 0;
  const int64_t n = static_cast<int64_t>(call.members.size());
  if (call.kind == Kind::kAllGather) return (n - 1) * call.send[0].bytes();
  if (call.kind == Kind::kAllReduce && is_library) return 2 * (n - 1) * CeilDiv(call.send[0].bytes(), n);
  for (size_t i = 0; i < call.send.size(); ++i) {
    if (IsMessage(call) || static_cast<int>(i) != call.me) bytes += call.send[i].bytes();
  }
  if (!levels.has_value()) return bytes;
  if (call.kind == Kind::kAllReduce) return (levels->num_machines() + levels->num_mates() - 2) * call.send[0].bytes();
  bytes = 0;
  for (int k = 0; k < levels->num_machines(); ++k) {
    for (int j = 0; j < levels->num_mates(); ++j) {
      if (j != levels->place || k != levels->machine) bytes += call.send[levels->Member(k, j)].bytes();
    }
  }
  return bytes;
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

// A large all-reduce as a sum of a piece each and an all-gather of the pieces.
std::pair<CollectiveCall, CollectiveCall> PiecesOfAllReduce(const CollectiveCall& call) {
  const int n = static_cast<int>(call.members.size());
  const int64_t element = kernels::SizeOf(call.send_dtype);
  const int64_t result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t elements = call.send[0].bytes() / element;
  CollectiveCall sum = call;
  sum.kind = Kind::kReduceScatter;
  const int64_t piece = graph::AllReducePiece(elements, n);
  const auto part = [&](const Region& whole, int i, int64_t size) {
    const int64_t begin = std::min(elements, i * piece), end = std::min(elements, begin + piece);
    return Flat(whole.data + begin * size, (end - begin) * size);
  };
  CollectiveCall gather = call;
  gather.kind = Kind::kAllGather;
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

}  // namespace

DeviceCollectives::DeviceCollectives(std::unique_ptr<Communication> communication, Sums sums, int64_t staging_bytes)
    : communication_(std::move(communication)), sums_(sums), max_staging_bytes_(staging_bytes) {}

int64_t DeviceCollectives::ChunkBytes(size_t num_members) const {
  return std::max(max_staging_bytes_ / NumSlots(num_members) / kSlotAlignment * kSlotAlignment, kSlotAlignment);
}

int64_t DeviceCollectives::SlotBytes(const CollectiveCall& call) const {
  int64_t largest = 0;
  for (const std::vector<Region>* regions : {&call.send, &call.receive}) {
    for (const Region& region : *regions) largest = std::max(largest, region.bytes());
  }
  return std::min(ChunkBytes(call.members.size()), CeilDiv(largest, kSlotAlignment) * kSlotAlignment);
}

absl::Status DeviceCollectives::Prepare(const CollectiveCall* call) {
  if (is_open_) return absl::FailedPreconditionError("a collective is prepared after the ranks are connected");
  if (tickets_.count(call) > 0) return absl::OkStatus();
  Prepared prepared;
  prepared.call = call;
  if (IsMessage(*call)) {
    const Region& region = call->kind == Kind::kSend ? call->send[0] : call->receive[0];
    if (!region.IsContiguous()) return absl::InternalError("a message between stages is not contiguous");
    const int peer = call->members[0];
    const int me = communication_->rank();
    TACC_ASSIGN_OR_RETURN(prepared.stream, call->kind == Kind::kSend
                                               ? communication_->MessageStream(call->channel, me, peer)
                                               : communication_->MessageStream(call->channel, peer, me));
    prepared.steps.push_back({*call});
  } else {
    TACC_ASSIGN_OR_RETURN(prepared.stream, communication_->CollectiveStream());
    TACC_RETURN_IF_ERROR(AddSteps(*call, prepared.steps));
    for (const auto& [step, levels, group] : prepared.steps) {
      if (group == nullptr || DirectRows(step) == 0)
        needed_bytes_ = std::max(needed_bytes_, NumSlots(step.members.size()) * SlotBytes(step));
    }
  }
  for (const auto& [step, levels, group] : prepared.steps)
    prepared.sent_bytes += SentBytes(step, levels, group != nullptr);
  TACC_ASSIGN_OR_RETURN(prepared.end, prepared.stream->CreateMark());
  tickets_[call] = static_cast<Ticket>(prepared_.size());
  prepared_.push_back(std::move(prepared));
  return absl::OkStatus();
}

std::optional<TwoLevels> DeviceCollectives::LevelsOf(const CollectiveCall& call) const {
  return FindTwoLevels(call.members, call.me, [this](int rank) { return communication_->machine_of(rank); });
}

absl::Status DeviceCollectives::AddSteps(const CollectiveCall& call, std::vector<Prepared::Step>& steps) const {
  Prepared::Step step{call};
  const bool sums = call.kind == Kind::kReduceScatter || call.kind == Kind::kAllReduce;
  const bool is_library =
      sums ? sums_ == Sums::kLibrary && call.send_dtype == call.receive_dtype : call.kind == Kind::kAllGather;
  if (is_library) {
    TACC_ASSIGN_OR_RETURN(step.group, communication_->Group(call.members));
  } else if (call.kind == Kind::kAllGather) {
    step.call = ExchangeOf(call);
  } else if (sums) {
    step.levels = LevelsOf(call);
  }
  if (call.kind == Kind::kAllReduce && step.group == nullptr) {
    const int64_t elements = call.send[0].bytes() / kernels::SizeOf(call.send_dtype);
    const auto n = static_cast<int64_t>(call.members.size());
    const int num_machines = NumMachines(call.members, [this](int rank) { return communication_->machine_of(rank); });
    // One chunk holds a small one.
    const bool is_small = elements <= graph::WholeAllReduceElementsOnGpus(n, num_machines) &&
                          elements * 8 <= ChunkBytes(call.members.size());
    if (n > 1 && !is_small) {
      const auto [sum, gather] = PiecesOfAllReduce(call);
      TACC_RETURN_IF_ERROR(AddSteps(sum, steps));
      return AddSteps(gather, steps);
    }
    if (!step.levels.has_value()) {
      step.call.kind = Kind::kReduceScatter;
      step.call.send.assign(call.members.size(), call.send[0]);
    }
  }
  steps.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status DeviceCollectives::Open() {
  if (needed_bytes_ > 0) {
    TACC_ASSIGN_OR_RETURN(staging_, communication_->AllocateStaging(needed_bytes_));
  }
  TACC_RETURN_IF_ERROR(communication_->Connect());
  is_open_ = true;
  return absl::OkStatus();
}

absl::StatusOr<DeviceCollectives::Ticket> DeviceCollectives::Start(const CollectiveCall* call) {
  const auto it = tickets_.find(call);
  if (it == tickets_.end() || !is_open_)
    return absl::InternalError(
        "a collective was started that has not been prepared, or before the ranks are connected");
  TACC_RETURN_IF_ERROR(communication_->Check());
  TACC_RETURN_IF_ERROR(Queue(prepared_[it->second]));
  return it->second;
}

absl::Status DeviceCollectives::Wait(Ticket ticket) {
  if (ticket < 0 || ticket >= static_cast<Ticket>(prepared_.size()))
    return absl::InternalError("a collective was waited for that has not been started");
  TACC_RETURN_IF_ERROR(communication_->Check());
  return prepared_[ticket].end->LetComputeFollow();
}

absl::Status DeviceCollectives::Finish(const CollectiveCall& call, Ticket ticket) {
  if (const auto it = tickets_.find(&call); it == tickets_.end() || it->second != ticket)
    return absl::InternalError("the message has not been started");
  return Wait(ticket);
}

absl::Status DeviceCollectives::Run(const CollectiveCall& call) {
  TACC_ASSIGN_OR_RETURN(const Ticket ticket, Start(&call));
  return Wait(ticket);
}

absl::Status DeviceCollectives::Queue(const Prepared& prepared) {
  CommunicationStream* const stream = prepared.stream;
  TACC_RETURN_IF_ERROR(stream->FollowCompute());
  if (is_timing_) {
    Marks& times = times_.try_emplace(stream, [stream] { return stream->CreateTimedMark(); }).first->second;
    Timed& timed = timed_.emplace_back();
    timed.sent_bytes = prepared.sent_bytes;
    TACC_ASSIGN_OR_RETURN(timed.begin, times.Set());
    TACC_RETURN_IF_ERROR(QueueSteps(prepared));
    TACC_ASSIGN_OR_RETURN(timed.end, times.Set());
  } else {
    TACC_RETURN_IF_ERROR(QueueSteps(prepared));
  }
  // Behind the times: what compute does next comes after them.
  return prepared.end->Set();
}

absl::Status DeviceCollectives::QueueSteps(const Prepared& prepared) {
  CommunicationStream& stream = *prepared.stream;
  TACC_RETURN_IF_ERROR(stream.BeginCall(prepared.call));
  for (const auto& [step, levels, group] : prepared.steps) {
    if (group != nullptr && step.kind == Kind::kAllReduce) {
      const int64_t elements = step.send[0].bytes() / kernels::SizeOf(step.send_dtype);
      TACC_RETURN_IF_ERROR(group->AllReduce(step.send[0].data, step.receive[0].data, elements, step.send_dtype));
    } else if (group != nullptr && step.kind == Kind::kAllGather) {
      TACC_RETURN_IF_ERROR(QueueAllGather(step, *group, stream));
    } else if (group != nullptr) {
      TACC_RETURN_IF_ERROR(QueueReduceScatter(step, *group, stream));
    } else if (IsMessage(step)) {
      TACC_RETURN_IF_ERROR(QueueMessage(step, stream));
    } else if (step.kind == Kind::kExchange) {
      TACC_RETURN_IF_ERROR(QueueExchange(step, stream));
    } else if (step.kind == Kind::kAllReduce) {
      TACC_RETURN_IF_ERROR(QueueSmallAllReduce(step, *levels, stream));
    } else if (levels.has_value()) {
      TACC_RETURN_IF_ERROR(QueueReduceScatter(step, *levels, stream));
    } else {
      TACC_RETURN_IF_ERROR(QueueReduceScatter(step, stream));
    }
  }
  return stream.EndCall();
}

absl::Status DeviceCollectives::StartTiming() {
  is_timing_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CollectiveTime>> DeviceCollectives::TakeTimes(const DeviceClock& clock) {
  is_timing_ = false;
  std::vector<CollectiveTime> times;
  for (const Timed& timed : timed_) {
    CollectiveTime& time = times.emplace_back();
    TACC_ASSIGN_OR_RETURN(time.begin, clock.SecondsAt(*timed.begin));
    TACC_ASSIGN_OR_RETURN(time.end, clock.SecondsAt(*timed.end));
    time.sent_bytes = timed.sent_bytes;
  }
  timed_.clear();
  for (auto& [stream, marks] : times_) marks.Clear();
  return times;
}

absl::Status DeviceCollectives::QueueMessage(const CollectiveCall& call, CommunicationStream& stream) {
  const int peer = call.members[0];
  GroupedMessages& messages = stream.messages();
  return Group(messages, [&] {
    return call.kind == Kind::kSend ? messages.Send(peer, call.send[0].data, call.send[0].bytes())
                                    : messages.Receive(peer, call.receive[0].data, call.receive[0].bytes());
  });
}

// Where it is not direct all parts are as long as the longest in each round, and what is beyond a shorter one's end
// moves too: the library takes equal parts only.
absl::Status DeviceCollectives::QueueAllGather(const CollectiveCall& call, GroupCollectives& group,
                                               CommunicationStream& stream) {
  const Region& mine = call.send[0];
  if (const int64_t rows = DirectRows(call); rows > 0)
    return group.AllGather(mine.data, call.receive[0].data, mine.bytes() / rows, rows);
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size()), longest = LargestBytes(call.receive);
  if (const Region& to = call.receive[call.me]; mine.bytes() > 0 && mine.data != to.data)
    TACC_RETURN_IF_ERROR(stream.Copy(mine, to));
  for (int64_t at = 0, round = 0; at < longest; at += chunk, ++round) {
    const int64_t count = InRound(longest, round, chunk);
    const auto stage = [&](int i) { return staging_->data() + i * count; };
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

// As QueueAllGather.
absl::Status DeviceCollectives::QueueReduceScatter(const CollectiveCall& call, GroupCollectives& group,
                                                   CommunicationStream& stream) {
  const Region& mine = call.receive[0];
  const int64_t element = kernels::SizeOf(call.send_dtype);
  if (const int64_t rows = DirectRows(call); rows > 0)
    return group.ReduceScatter(call.send[0].data, mine.data, mine.bytes() / element / rows, call.send_dtype, rows);
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size()) / element * element, longest = LargestBytes(call.send);
  for (int64_t at = 0, round = 0; at < longest; at += chunk, ++round) {
    const int64_t count = InRound(longest, round, chunk);
    const auto stage = [&](int i) { return staging_->data() + i * count; };
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
absl::Status DeviceCollectives::QueueExchange(const CollectiveCall& call, CommunicationStream& stream) {
  const int n = static_cast<int>(call.members.size());
  const int64_t chunk = ChunkBytes(call.members.size()), slot = SlotBytes(call);
  const auto stage = [&](int index) { return staging_->data() + index * slot; };
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
absl::Status DeviceCollectives::QueueReduceScatter(const CollectiveCall& call, CommunicationStream& stream) {
  const int n = static_cast<int>(call.members.size());
  const int64_t element = kernels::SizeOf(call.send_dtype), result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t slot = SlotBytes(call);
  const auto stage = [&](int index) { return staging_->data() + index * slot; };
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
absl::Status DeviceCollectives::QueueReduceScatter(const CollectiveCall& call, const TwoLevels& levels,
                                                   CommunicationStream& stream) {
  const int machines = levels.num_machines(), mates = levels.num_mates();
  const int packed = machines * mates, partial = 2 * packed, sum_slot = partial + machines;
  const int64_t element = kernels::SizeOf(call.send_dtype), result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t slot = SlotBytes(call);
  const int64_t chunk = ChunkBytes(call.members.size()) / std::max(element, result_element);
  const auto stage = [&](int index) { return staging_->data() + index * slot; };
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
absl::Status DeviceCollectives::QueueSmallAllReduce(const CollectiveCall& call, const TwoLevels& levels,
                                                    CommunicationStream& stream) {
  const int64_t slot = SlotBytes(call), bytes = call.send[0].bytes();
  char* const of_mates = staging_->data();
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
