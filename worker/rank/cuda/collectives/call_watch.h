#ifndef TACC_WORKER_RANK_CUDA_COLLECTIVES_CALL_WATCH_H_
#define TACC_WORKER_RANK_CUDA_COLLECTIVES_CALL_WATCH_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kernels/cuda/collective.h"
#include "worker/rank/collectives/collectives.h"
#include "worker/rank/protocol/status_block.h"

namespace tacc::worker {

// "rank 3", "ranks 1, 2".
std::string RanksText(const std::vector<int>& ranks);

// Watches calls that a device begins and ends while the host is elsewhere, perhaps in a wait for the device: by the
// words that the device writes around each call (kernels/cuda/collective.h), which holds for what has been recorded
// too. A thread looks at them: it shows in the status block where the device is, and when a call that has begun does
// not end within the time-out it says which, keeps the error for Check, and has the talk aborted, so that the host's
// wait ends.
class CallWatch {
 public:
  CallWatch(int rank, absl::Duration timeout);
  ~CallWatch() { Stop(); }
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  // Before Start. A queue of calls, which are begun and ended one after the other; the words must outlive Stop.
  void AddQueue(kernels::cuda::Progress* progress);
  // Before Start. `place`: the index of the program's call that the device's own work is in, by PublishPlace.
  void Show(StatusBlock* status, uint32_t* place);

  // The number under which a device publishes `call`. `program_call` is the program's call that a message is of; that
  // of a collective, which may be recorded for several, is where the device's own work is: they end in the same.
  uint32_t NumberOf(const CollectiveCall& call, uint32_t program_call);

  // Looks from now on, several times within the time-out, and at what `look` sees, until there is an error: then calls
  // `abort`, on the same thread, and looks no more.
  void Start(std::function<absl::Status()> look, std::function<void()> abort);
  // Ends the thread; waits for `abort`.
  void Stop();

  // How far the queues are. On any thread.
  CollectiveProgress Progress() const;
  // The first error: Unavailable names the ranks of the call that was not answered in time.
  absl::Status Check() const;

 private:
  struct Queue {
    kernels::cuda::Progress* progress = nullptr;
    // As seen last, and when it changed last.
    uint32_t begun = 0, ended = 0;
    absl::Time since = absl::InfiniteFuture();
    bool waits() const { return begun != ended; }
  };
  struct Call {
    std::string text;
    CollectiveCall::Kind kind = CollectiveCall::Kind::kExchange;
    uint32_t node = 0;
    uint32_t program_call = 0;  // Of a message.
  };

  void Loop(const std::function<absl::Status()>& look, const std::function<void()>& abort);
  absl::Status Look(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowPlace(const Queue& moved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Null before the first.
  const Call* CurrentCall(const Queue& queue) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int rank_;
  const absl::Duration timeout_;
  StatusBlock* status_ = nullptr;
  uint32_t* place_ = nullptr;
  mutable absl::Mutex mutex_;
  std::vector<Queue> queues_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::map<std::pair<const CollectiveCall*, uint32_t>, uint32_t> numbers_ ABSL_GUARDED_BY(mutex_);
  std::vector<Call> calls_ ABSL_GUARDED_BY(mutex_);  // By number.
  std::thread thread_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_COLLECTIVES_CALL_WATCH_H_
