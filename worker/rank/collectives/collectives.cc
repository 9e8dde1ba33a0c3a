#include "worker/rank/collectives/collectives.h"

#include <utility>

#include "graph/ir/status_macros.h"
#include "machine/clock.h"

namespace tacc::worker {
namespace {

// Plain exchanges whose messages are posted together.
constexpr size_t kMaxTogether = 16;

}  // namespace

Collectives::Collectives(int rank, int world) : rank_(rank), world_(world) {}

Collectives::~Collectives() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

void Collectives::Loop() {
  while (true) {
    // One call, or several plain exchanges in a row: their messages travel together, which saves a wake-up each.
    std::vector<const CollectiveCall*> calls;
    const CollectiveCall* message = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &Collectives::HasWork));
      if (stop_) return;
      if (queue_.front()->is_message()) {
        message = queue_.front();
        queue_.pop_front();
      }
      for (const CollectiveCall* call : queue_) {
        if (message != nullptr) break;
        if (!calls.empty() &&
            (!engine_.IsPlain(*call) || !engine_.IsPlain(*calls.front()) || calls.size() == kMaxTogether))
          break;
        calls.push_back(call);
      }
    }
    if (message != nullptr) {
      Post(message);
      continue;
    }
    double begin = SteadySeconds();
    std::vector<CollectiveEngine::Messages> messages(calls.size());
    std::vector<int64_t> sent_before = {engine_.bytes_sent()};
    absl::Status status;
    if (calls.size() > 1) {
      for (size_t i = 0; i < calls.size(); ++i) {
        status.Update(engine_.Begin(*calls[i], messages[i]));
        sent_before.push_back(engine_.bytes_sent());
      }
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      if (status.ok()) status = calls.size() > 1 ? CollectiveEngine::WaitAll(messages[i]) : engine_.Execute(*calls[i]);
      const double end = SteadySeconds();
      const int64_t sent = (calls.size() > 1 ? sent_before[i + 1] : engine_.bytes_sent()) - sent_before[i];
      absl::MutexLock lock(&mutex_);
      queue_.pop_front();
      ++num_done_;
      status_.Update(status);
      stats_.busy_seconds += end - begin;
      stats_.bytes_sent = engine_.bytes_sent();
      if (CollectiveTime* time = TimeOf(num_done_); time != nullptr) *time = {begin, end, sent};
      begin = end;
      if (status_.ok()) continue;
      // What was to follow cannot be trusted to meet its counterpart.
      num_done_ = num_started_;
      queue_.clear();
      break;
    }
  }
}

void Collectives::Post(const CollectiveCall* call) {
  const double begin = SteadySeconds();
  const int64_t sent_before = engine_.bytes_sent();
  absl::StatusOr<std::unique_ptr<Message>> message = engine_.Post(*call);
  const int64_t sent = engine_.bytes_sent() - sent_before;
  absl::MutexLock lock(&mutex_);
  status_.Update(message.status());
  if (message.ok()) posted_[call] = *std::move(message);
  stats_.bytes_sent = engine_.bytes_sent();
  ++num_done_;
  if (CollectiveTime* time = TimeOf(num_done_); time != nullptr) *time = {begin, begin, sent};
  if (status_.ok()) return;
  num_done_ = num_started_;
  queue_.clear();
}

absl::Status Collectives::Finish(const CollectiveCall& call, Ticket ticket) {
  TACC_RETURN_IF_ERROR(Wait(ticket));
  std::unique_ptr<Message> message;
  {
    absl::MutexLock lock(&mutex_);
    message = std::move(posted_[&call]);
    posted_.erase(&call);
  }
  if (message == nullptr) return absl::InternalError("the message has not been started");
  const double begin = SteadySeconds();
  const absl::Status status = message->Wait();
  const double end = SteadySeconds();
  absl::MutexLock lock(&mutex_);
  if (CollectiveTime* time = TimeOf(ticket); time != nullptr) time->end = end;
  stats_.wait_seconds += end - begin;
  status_.Update(status);
  return status_;
}

absl::StatusOr<Collectives::Ticket> Collectives::Start(const CollectiveCall* call) {
  if (call->is_message()) {
    bool is_idle = false;
    Ticket ticket = 0;
    {
      absl::MutexLock lock(&mutex_);
      is_idle = num_done_ == num_started_ && status_.ok();
      if (is_idle) {
        ++stats_.num_calls;
        ticket = ++num_started_;
      }
    }
    if (is_idle) {
      Post(call);
      return ticket;
    }
  }
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  absl::MutexLock lock(&mutex_);
  ++stats_.num_calls;
  ++num_started_;
  if (status_.ok()) {
    queue_.push_back(call);
  } else {
    num_done_ = num_started_;
  }
  return num_started_;
}

absl::Status Collectives::Wait(Ticket ticket) {
  const double begin = SteadySeconds();
  absl::MutexLock lock(&mutex_);
  const auto done = [this, ticket]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_done_ >= ticket; };
  mutex_.Await(absl::Condition(&done));
  stats_.wait_seconds += SteadySeconds() - begin;
  return status_;
}

absl::Status Collectives::Run(const CollectiveCall& call) {
  bool is_idle = false;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    is_idle = num_done_ == num_started_;
    if (is_idle) {
      ++stats_.num_calls;
      ++num_started_;
    }
  }
  if (!is_idle) {
    TACC_ASSIGN_OR_RETURN(const Ticket ticket, Start(&call));
    return Wait(ticket);
  }
  const double begin = SteadySeconds();
  const int64_t sent_before = engine_.bytes_sent();
  const absl::Status status = engine_.Execute(call);
  const double end = SteadySeconds();
  absl::MutexLock lock(&mutex_);
  ++num_done_;
  status_.Update(status);
  stats_.busy_seconds += end - begin;
  stats_.wait_seconds += end - begin;
  stats_.bytes_sent = engine_.bytes_sent();
  if (CollectiveTime* time = TimeOf(num_done_); time != nullptr) *time = {begin, end, stats_.bytes_sent - sent_before};
  return status_;
}

absl::Status Collectives::StartTiming() {
  absl::MutexLock lock(&mutex_);
  is_timing_ = true;
  first_timed_ = num_started_ + 1;
  times_.clear();
  return absl::OkStatus();
}

CollectiveTime* Collectives::TimeOf(Ticket ticket) {
  if (!is_timing_ || ticket < first_timed_) return nullptr;
  const size_t index = static_cast<size_t>(ticket - first_timed_);
  if (index >= times_.size()) times_.resize(index + 1);
  return &times_[index];
}

absl::StatusOr<std::vector<CollectiveTime>> Collectives::TakeTimes(const DeviceClock&) {
  absl::MutexLock lock(&mutex_);
  is_timing_ = false;
  return std::exchange(times_, {});
}

absl::StatusOr<std::vector<std::vector<uint64_t>>> Collectives::GatherHost(const std::vector<uint64_t>& values) {
  std::vector<std::vector<uint64_t>> all(world_, std::vector<uint64_t>(values.size()));
  all[rank_] = values;
  if (world_ == 1) return all;
  CollectiveCall call;
  const int64_t bytes = static_cast<int64_t>(values.size() * sizeof(uint64_t));
  call.kind = CollectiveCall::Kind::kAllGather;
  call.send = {Flat(all[rank_].data(), bytes)};
  for (int r = 0; r < world_; ++r) {
    call.members.push_back(r);
    call.receive.push_back(Flat(all[r].data(), bytes));
  }
  call.me = rank_;
  TACC_RETURN_IF_ERROR(Run(call));
  return all;
}

absl::Status Collectives::Barrier() { return GatherHost({0}).status(); }

CollectiveStats Collectives::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace tacc::worker
