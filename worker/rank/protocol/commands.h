// Commands on a rank's stdin.
#ifndef TACC_WORKER_RANK_PROTOCOL_COMMANDS_H_
#define TACC_WORKER_RANK_PROTOCOL_COMMANDS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/optional.h"
#include "worker/rank/protocol/endpoint.h"
#include "worker/rank/protocol/events.h"

namespace tacc::worker {

// Commands received so far. Every rank receives each command, but perhaps at another step: the largest counts of all
// ranks say what to do.
struct CommandCounts {
  uint64_t checkpoints = 0;
  uint64_t stops = 0;
};

// Reads the commands of docs/contracts.md from a file descriptor on a thread of its own. At end-of-file it calls
// `at_end`: the daemon has gone. Lines that are no known command become a log event.
class CommandReader {
 public:
  // Longer lines are no commands.
  static constexpr size_t kMaxLineBytes = 64 << 10;

  CommandReader(int fd, EventWriter* events, std::function<void()> at_end);
  // Leaves the thread to the process's end: it may sit in read().
  ~CommandReader();

  // Waits for `rendezvous`.
  Endpoint WaitForRendezvous();

  CommandCounts counts();

  // Waits for the answer to FetchEvent: the upload's folder. Calls `wait` now and then. Unavailable: why it is not
  // there.
  absl::StatusOr<std::string> WaitForUpload(const std::string& upload, const std::function<void()>& wait);

 private:
  struct State {
    absl::Mutex mutex;
    absl::optional<Endpoint> endpoint ABSL_GUARDED_BY(mutex);
    CommandCounts counts ABSL_GUARDED_BY(mutex);
    std::string upload ABSL_GUARDED_BY(mutex);  // That came last.
    absl::StatusOr<std::string> upload_path ABSL_GUARDED_BY(mutex);
  };

  static void Loop(int fd, std::shared_ptr<State> state, EventWriter* events, std::function<void()> at_end);
  static void Handle(const std::string& line, State& state, EventWriter* events);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_COMMANDS_H_
