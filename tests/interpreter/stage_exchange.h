#ifndef TACC_TESTS_INTERPRETER_STAGE_EXCHANGE_H_
#define TACC_TESTS_INTERPRETER_STAGE_EXCHANGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "tests/interpreter/shards.h"

namespace tacc::interpreter {

// What the stages of a pipeline, a thread each, tell each other. A stage that waits when all others wait too, or have
// ended, gets FailedPrecondition: the programs wait in a circle.
class StageExchange {
 public:
  // Before the threads of a run: so many will call Leave.
  void Start(int num_stages);

  void Send(int64_t channel, int64_t micro_batch, Shards shards);
  // The message, once it is there.
  absl::StatusOr<Shards> Receive(int64_t channel, int64_t micro_batch);
  // The sum over `stages`, each of which calls it, rank by rank.
  absl::StatusOr<Shards> Sum(int stage, const std::vector<int64_t>& stages, Shards shards);
  // This stage's thread ends.
  void Leave();

 private:
  // Waits for `ready`, which other stages make true.
  absl::Status Await(const std::function<bool()>& ready) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  struct Gathering {
    std::map<int, Shards> parts;  // by stage
    size_t num_taken = 0;
  };

  absl::Mutex mutex_;
  absl::CondVar changed_;
  size_t num_running_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<const std::function<bool()>*> waiting_ ABSL_GUARDED_BY(mutex_);  // what each that waits waits for
  bool is_stuck_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::pair<int64_t, int64_t>, Shards> messages_ ABSL_GUARDED_BY(mutex_);  // (channel, micro-batch)
  // (stages, how many sums they made before)
  std::map<std::pair<std::vector<int64_t>, int64_t>, Gathering> sums_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<std::vector<int64_t>, int>, int64_t> num_sums_ ABSL_GUARDED_BY(mutex_);  // (stages, stage)
};

}  // namespace tacc::interpreter

#endif  // TACC_TESTS_INTERPRETER_STAGE_EXCHANGE_H_
