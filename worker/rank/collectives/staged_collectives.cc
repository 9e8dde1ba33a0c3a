#include "worker/rank/collectives/staged_collectives.h"

#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

constexpr int64_t kAlignment = 64;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// A part that stays where it is.
bool Stays(const CollectiveCall& call, size_t i) {
  const bool gathers = call.kind == CollectiveCall::Kind::kAllGather;
  if ((!gathers && call.kind != CollectiveCall::Kind::kExchange) || static_cast<int>(i) != call.me) return false;
  const Region& sent = call.send[gathers ? 0 : i];
  return sent.data == call.receive[i].data && sent.stride_bytes == call.receive[i].stride_bytes;
}

}  // namespace

absl::Status StagedCollectives::Prepare(const CollectiveCall* call) {
  Staged& staged = staged_[call];
  staged.call = call;
  staged.on_host = *call;
  int64_t bytes = 0;
  for (const std::vector<Region>* regions : {&call->send, &call->receive}) {
    for (const Region& region : *regions) bytes += RoundUp(region.bytes());
  }
  TACC_ASSIGN_OR_RETURN(staged.memory, device_.AllocateHost(bytes));
  char* place = staged.memory->data();
  for (Region& region : staged.on_host.send) {
    region = Flat(place, region.bytes());
    place += RoundUp(region.bytes());
  }
  for (size_t i = 0; i < call->receive.size(); ++i) {
    const Region& region = call->receive[i];
    Region& on_host = staged.on_host.receive[i];
    on_host = Flat(place, region.bytes());
    if (Stays(*call, i)) on_host = staged.on_host.send[call->kind == CollectiveCall::Kind::kAllGather ? 0 : i];
    place += RoundUp(region.bytes());
  }
  return host_.Prepare(&staged.on_host);
}

absl::StatusOr<StagedCollectives::Staged*> StagedCollectives::Find(const CollectiveCall* call) {
  const auto it = staged_.find(call);
  if (it == staged_.end()) return absl::InternalError("a collective was started that has not been prepared");
  return &it->second;
}

absl::StatusOr<StagedCollectives::Ticket> StagedCollectives::Start(const CollectiveCall* call) {
  TACC_ASSIGN_OR_RETURN(Staged * staged, Find(call));
  for (size_t i = 0; i < call->send.size(); ++i) {
    if (call->send[i].bytes() > 0) device_.Download(call->send[i], staged->on_host.send[i].data);
  }
  TACC_RETURN_IF_ERROR(device_.Synchronize());
  TACC_ASSIGN_OR_RETURN(const Ticket ticket, host_.Start(&staged->on_host));
  under_way_[ticket] = staged;
  return ticket;
}

void StagedCollectives::CopyIn(const Staged& staged) {
  const CollectiveCall& call = *staged.call;
  for (size_t i = 0; i < call.receive.size(); ++i) {
    const Region& on_host = staged.on_host.receive[i];
    if (on_host.bytes() > 0 && !Stays(call, i)) device_.Upload(on_host.data, call.receive[i]);
  }
}

absl::Status StagedCollectives::Wait(Ticket ticket) {
  TACC_RETURN_IF_ERROR(host_.Wait(ticket));
  const auto it = under_way_.find(ticket);
  if (it == under_way_.end()) return absl::InternalError("a collective was waited for that has not been started");
  CopyIn(*it->second);
  under_way_.erase(it);
  // The host's memory is the next call's.
  return device_.Synchronize();
}

absl::Status StagedCollectives::Finish(const CollectiveCall& call, Ticket ticket) {
  TACC_ASSIGN_OR_RETURN(Staged * staged, Find(&call));
  TACC_RETURN_IF_ERROR(host_.Finish(staged->on_host, ticket));
  under_way_.erase(ticket);
  CopyIn(*staged);
  return device_.Synchronize();
}

absl::Status StagedCollectives::Run(const CollectiveCall& call) {
  TACC_ASSIGN_OR_RETURN(const Ticket ticket, Start(&call));
  return Wait(ticket);
}

}  // namespace tacc::worker
