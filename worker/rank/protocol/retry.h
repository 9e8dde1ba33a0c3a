#ifndef TACC_WORKER_RANK_PROTOCOL_RETRY_H_
#define TACC_WORKER_RANK_PROTOCOL_RETRY_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace tacc::worker {

// How something is tried that fails for what may pass, as a full disk.
struct RetryOptions {
  absl::Span<const int> wait_seconds;                                  // Between one try and the next.
  std::function<bool(const absl::Status&)> may_pass;                   // Of an error: else it is the last.
  std::function<absl::Status(const absl::Status&, int seconds)> wait;  // After an error. Its own error ends it.
};

// What the last try of `work` returned.
inline absl::Status Retry(const RetryOptions& options, const std::function<absl::Status()>& work) {
  absl::Status status = work();
  for (const int seconds : options.wait_seconds) {
    if (status.ok() || !options.may_pass(status)) break;
    if (absl::Status waited = options.wait(status, seconds); !waited.ok()) return waited;
    status = work();
  }
  return status;
}

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_PROTOCOL_RETRY_H_
