#include "tests/interpreter/stage_exchange.h"

#include <algorithm>

#include "graph/ir/status_macros.h"

namespace tacc::interpreter {

void StageExchange::Start(int num_stages) {
  absl::MutexLock lock(&mutex_);
  num_running_ = num_stages;
  is_stuck_ = false;
  messages_.clear();
  sums_.clear();
  num_sums_.clear();
}

absl::Status StageExchange::Await(const std::function<bool()>& ready) {
  waiting_.insert(&ready);
  while (!ready() && !is_stuck_) {
    // Who has been told what it waits for may not have woken up yet.
    if (waiting_.size() == num_running_ &&
        std::none_of(waiting_.begin(), waiting_.end(), [](auto* w) { return (*w)(); })) {
      is_stuck_ = true;
      changed_.SignalAll();
      break;
    }
    changed_.Wait(&mutex_);
  }
  waiting_.erase(&ready);
  return ready() ? absl::OkStatus() : absl::FailedPreconditionError("the stages wait for each other in a circle");
}

void StageExchange::Send(int64_t channel, int64_t micro_batch, Shards shards) {
  absl::MutexLock lock(&mutex_);
  messages_[{channel, micro_batch}] = std::move(shards);
  changed_.SignalAll();
}

absl::StatusOr<Shards> StageExchange::Receive(int64_t channel, int64_t micro_batch) {
  absl::MutexLock lock(&mutex_);
  const std::pair<int64_t, int64_t> key{channel, micro_batch};
  TACC_RETURN_IF_ERROR(Await([&] { return messages_.count(key) > 0; }));
  Shards shards = std::move(messages_.at(key));
  messages_.erase(key);
  return shards;
}

absl::StatusOr<Shards> StageExchange::Sum(int stage, const std::vector<int64_t>& stages, Shards shards) {
  absl::MutexLock lock(&mutex_);
  const std::pair<std::vector<int64_t>, int64_t> key{stages, num_sums_[{stages, stage}]++};
  Gathering& gathering = sums_[key];
  gathering.parts[stage] = std::move(shards);
  changed_.SignalAll();
  TACC_RETURN_IF_ERROR(Await([&] { return gathering.parts.size() == stages.size(); }));
  Shards sum = gathering.parts.begin()->second;
  for (auto it = std::next(gathering.parts.begin()); it != gathering.parts.end(); ++it) {
    for (size_t rank = 0; rank < sum.size(); ++rank) {
      for (size_t i = 0; i < sum[rank].values.size(); ++i) sum[rank].values[i] += it->second[rank].values[i];
    }
  }
  if (++gathering.num_taken == stages.size()) sums_.erase(key);
  return sum;
}

void StageExchange::Leave() {
  absl::MutexLock lock(&mutex_);
  --num_running_;
  changed_.SignalAll();
}

}  // namespace tacc::interpreter
