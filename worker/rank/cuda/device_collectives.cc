#include "worker/rank/cuda/device_collectives.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/device_clock.h"

namespace tacc::worker {
namespace {

using Kind = CollectiveCall::Kind;

constexpr int64_t kSlotAlignment = 256;
// Up to this size an all-reduce sends the whole tensor to everyone: one round of messages instead of two.
constexpr int64_t kSmallAllReduceBytes = 256 << 10;
constexpr int64_t kPieceElements = 64;  // Pieces of an all-reduce start at multiples of it.

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool IsMessage(const CollectiveCall& call) { return call.kind == Kind::kSend || call.kind == Kind::kReceive; }

// What this rank sends to others.
int64_t SentBytes(const CollectiveCall& call) {
  int64_t bytes = 0;
  for (size_t i = 0; i < call.send.size(); ++i) {
    if (IsMessage(call) || static_cast<int>(i) != call.me) bytes += call.send[i].bytes();
  }
  return bytes;
}

// Of which a sum has two more: its own part and the result.
int64_t NumSlots(size_t num_members) { return 2 * static_cast<int64_t>(num_members) + 2; }

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

// An all-reduce as a sum and, where each rank sums a piece only, an exchange of the pieces.
std::vector<CollectiveCall> StepsOfAllReduce(const CollectiveCall& call, int64_t chunk) {
  const int n = static_cast<int>(call.members.size());
  const int64_t element = kernels::SizeOf(call.send_dtype);
  const int64_t result_element = kernels::SizeOf(call.receive_dtype);
  const int64_t elements = call.send[0].bytes() / element;
  CollectiveCall sum = call;
  sum.kind = Kind::kReduceScatter;
  if (n == 1 || elements * 8 <= std::min(kSmallAllReduceBytes, chunk)) {
    sum.send.assign(n, call.send[0]);
    return {std::move(sum)};
  }
  const int64_t piece = CeilDiv(CeilDiv(elements, n), kPieceElements) * kPieceElements;
  const auto part = [&](const Region& whole, int i, int64_t size) {
    const int64_t begin = std::min(elements, i * piece), end = std::min(elements, begin + piece);
    return Flat(whole.data + begin * size, (end - begin) * size);
  };
  CollectiveCall gather = call;
  gather.kind = Kind::kExchange;
  sum.send.clear();
  gather.receive.clear();
  for (int i = 0; i < n; ++i) {
    sum.send.push_back(part(call.send[0], i, element));
    gather.receive.push_back(part(call.receive[0], i, result_element));
  }
  sum.receive = {gather.receive[call.me]};
  gather.send.assign(n, sum.receive[0]);
  return {std::move(sum), std::move(gather)};
}

}  // namespace

DeviceCollectives::DeviceCollectives(std::unique_ptr<Communication> communication, int64_t staging_bytes)
    : communication_(std::move(communication)), max_staging_bytes_(staging_bytes) {}

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
    prepared.steps = {*call};
  } else {
    TACC_ASSIGN_OR_RETURN(prepared.stream, communication_->CollectiveStream());
    if (call->kind == Kind::kAllReduce) {
      prepared.steps = StepsOfAllReduce(*call, ChunkBytes(call->members.size()));
    } else {
      prepared.steps = {*call};
    }
    for (const CollectiveCall& step : prepared.steps)
      needed_bytes_ = std::max(needed_bytes_, NumSlots(step.members.size()) * SlotBytes(step));
  }
  for (const CollectiveCall& step : prepared.steps) prepared.sent_bytes += SentBytes(step);
  TACC_ASSIGN_OR_RETURN(prepared.end, prepared.stream->CreateMark());
  tickets_[call] = static_cast<Ticket>(prepared_.size());
  prepared_.push_back(std::move(prepared));
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
  for (const CollectiveCall& step : prepared.steps) {
    if (IsMessage(step)) {
      TACC_RETURN_IF_ERROR(QueueMessage(step, stream));
    } else if (step.kind == Kind::kExchange) {
      TACC_RETURN_IF_ERROR(QueueExchange(step, stream));
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

}  // namespace tacc::worker
