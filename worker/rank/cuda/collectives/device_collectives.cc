#include "worker/rank/cuda/collectives/device_collectives.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/ir/collective_limits.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/collectives/collective_steps.h"
#include "worker/rank/device/device_clock.h"

namespace tacc::worker {
namespace {

using Kind = CollectiveCall::Kind;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// What this rank sends to others: of the library's as in a ring; of a sum in two levels to mates, and each machine but
// its own one sum.
int64_t SentBytes(const CollectiveCall& call, const std::optional<TwoLevels>& levels, bool is_library) {
  int64_t bytes = 0;
  const int64_t n = static_cast<int64_t>(call.members.size());
  if (call.kind == Kind::kAllGather) return (n - 1) * call.send[0].bytes();
  if (call.kind == Kind::kAllReduce && is_library) return 2 * (n - 1) * CeilDiv(call.send[0].bytes(), n);
  for (size_t i = 0; i < call.send.size(); ++i) {
    if (call.is_message() || static_cast<int>(i) != call.me) bytes += call.send[i].bytes();
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

}  // namespace

DeviceCollectives::DeviceCollectives(std::unique_ptr<Communication> communication, Sums sums, int64_t staging_bytes)
    : communication_(std::move(communication)), sums_(sums), queue_(staging_bytes) {}

absl::Status DeviceCollectives::Prepare(const CollectiveCall* call) {
  if (is_open_) return absl::FailedPreconditionError("a collective is prepared after the ranks are connected");
  if (tickets_.count(call) > 0) return absl::OkStatus();
  Prepared prepared;
  prepared.call = call;
  if (call->is_message()) {
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
    for (const CollectiveStep& step : prepared.steps)
      needed_bytes_ = std::max(needed_bytes_, queue_.StagingBytes(step));
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

absl::Status DeviceCollectives::AddSteps(const CollectiveCall& call, std::vector<CollectiveStep>& steps) const {
  CollectiveStep step{call};
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
                          elements * 8 <= queue_.ChunkBytes(call.members.size());
    if (n > 1 && !is_small) {
      const auto [sum, gather] = PiecesOfAllReduce(call);
      TACC_RETURN_IF_ERROR(AddSteps(sum, steps));
      return AddSteps(gather, steps);
    }
    if (!step.levels.has_value()) {
      step.call = SumOfWholes(call);
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
  char* const staging = staging_ == nullptr ? nullptr : staging_->data();
  for (const CollectiveStep& step : prepared.steps) TACC_RETURN_IF_ERROR(queue_.Add(step, staging, stream));
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

}  // namespace tacc::worker
