#include "worker/rank/cuda/collectives/call_watch.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace tacc::worker {
namespace {

using Kind = CollectiveCall::Kind;

constexpr absl::Duration kLongestInterval = absl::Milliseconds(100);
constexpr int kLooksWithinTimeout = 5;

const char* Name(Kind kind) {
  switch (kind) {
    case Kind::kExchange:
      return "an exchange with ";
    case Kind::kAllGather:
      return "an all-gather with ";
    case Kind::kReduceScatter:
      return "a reduce-scatter with ";
    case Kind::kAllReduce:
      return "an all-reduce with ";
    case Kind::kSend:
      return "a message to ";
    case Kind::kReceive:
      return "a message from ";
  }
  return "";
}

bool IsMessage(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }

// What holds up a rank first of all: a collective, then what it has not got, then what the other has not taken.
int Urgency(Kind kind) { return kind == Kind::kSend ? 0 : kind == Kind::kReceive ? 1 : 2; }

uint32_t Read(uint32_t& word) { return std::atomic_ref<uint32_t>(word).load(); }

}  // namespace

std::string RanksText(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", absl::StrJoin(ranks, ", "));
}

CallWatch::CallWatch(int rank, absl::Duration timeout) : rank_(rank), timeout_(timeout) {}

void CallWatch::AddQueue(kernels::cuda::Progress* progress) {
  absl::MutexLock lock(&mutex_);
  queues_.push_back({progress});
}

void CallWatch::Show(StatusBlock* status, uint32_t* place) {
  status_ = status;
  place_ = place;
}

uint32_t CallWatch::NumberOf(const CollectiveCall& call, uint32_t program_call) {
  absl::MutexLock lock(&mutex_);
  const auto [it, is_new] = numbers_.emplace(std::pair(&call, IsMessage(call.kind) ? program_call : 0), calls_.size());
  if (!is_new) return it->second;
  std::vector<int> others;
  for (int rank : call.members) {
    if (rank != rank_) others.push_back(rank);
  }
  int64_t bytes = 0;
  for (const Region& region : call.kind == Kind::kReceive ? call.receive : call.send) bytes += region.bytes();
  calls_.push_back(
      {absl::StrCat(Name(call.kind), RanksText(others), " (", bytes, " bytes)"), call.kind, call.node, program_call});
  return it->second;
}

void CallWatch::Start(std::function<absl::Status()> look, std::function<void()> abort) {
  thread_ = std::thread([this, look = std::move(look), abort = std::move(abort)] { Loop(look, abort); });
}

void CallWatch::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

CollectiveProgress CallWatch::Progress() const {
  absl::MutexLock lock(&mutex_);
  CollectiveProgress sum;
  for (const Queue& queue : queues_) {
    const uint32_t ended = Read(queue.progress->num_ended), begun = Read(queue.progress->num_begun);
    sum.num_moves += uint64_t{begun} + ended;
    const uint32_t number = Read(queue.progress->current);
    if (begun != ended && number < calls_.size() && !IsMessage(calls_[number].kind)) sum.is_under_way = true;
  }
  return sum;
}

absl::Status CallWatch::Check() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

void CallWatch::Loop(const std::function<absl::Status()>& look, const std::function<void()>& abort) {
  const absl::Duration interval = std::min(kLongestInterval, timeout_ / kLooksWithinTimeout);
  while (true) {
    const absl::Status seen = look ? look() : absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    error_.Update(seen);
    error_.Update(Look(absl::Now()));
    if (!error_.ok()) break;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stop_), interval)) return;
  }
  abort();
}

absl::Status CallWatch::Look(absl::Time now) {
  const Queue* moved = nullptr;  // The first.
  for (Queue& queue : queues_) {
    // In this order a call that begins meanwhile is not taken for one that has ended.
    const uint32_t ended = Read(queue.progress->num_ended), begun = Read(queue.progress->num_begun);
    const bool is_new = begun != queue.begun || ended != queue.ended;
    if (is_new && moved == nullptr) moved = &queue;
    if (is_new || begun == ended) queue.since = now;
    queue.begun = begun;
    queue.ended = ended;
  }
  if (moved != nullptr) ShowPlace(*moved);
  for (const Queue& queue : queues_) {
    if (now - queue.since <= timeout_) continue;
    const Call* const call = CurrentCall(queue);
    return absl::UnavailableError(absl::StrCat("rank ", rank_, " waits for ",
                                               call == nullptr ? "other ranks" : call->text, " and had no answer for ",
                                               absl::FormatDuration(timeout_)));
  }
  return absl::OkStatus();
}

const CallWatch::Call* CallWatch::CurrentCall(const Queue& queue) const {
  const uint32_t number = Read(queue.progress->current);
  return queue.begun == 0 || number >= calls_.size() ? nullptr : &calls_[number];
}

void CallWatch::ShowPlace(const Queue& moved) {
  if (status_ == nullptr) return;
  const Call* shown = nullptr;
  for (const Queue& queue : queues_) {
    const Call* const call = queue.waits() ? CurrentCall(queue) : nullptr;
    if (call != nullptr && (shown == nullptr || Urgency(call->kind) > Urgency(shown->kind))) shown = call;
  }
  const Activity activity = shown == nullptr ? Activity::kInNode : Activity::kInCollective;
  if (shown == nullptr) shown = CurrentCall(moved);
  if (shown == nullptr) return;
  status_->SetNode(IsMessage(shown->kind) ? shown->program_call : Read(*place_), shown->node, activity);
}

}  // namespace tacc::worker
