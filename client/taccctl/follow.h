// Following a job to its end, over lost connections and restarts of the coordinator.
#ifndef TACC_CLIENT_TACCCTL_FOLLOW_H_
#define TACC_CLIENT_TACCCTL_FOLLOW_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "client/taccctl/session/context.h"
#include "client/taccctl/session/coordinator_client.h"

namespace tacc::client {

struct FollowOptions {
  OutputForm form = OutputForm::kTable;
  // Items after this cursor.
  uint64_t cursor = 0;
  // 0: no limit.
  double timeout_seconds = 0;
  // What following does then; with kAskAgain it goes on, and asks again after a while, as long as nothing else is
  // asked.
  enum class Answer { kLeave, kGoOn, kAskAgain };
  // Asked when the user interrupts, with how often they did so far, and whether a step of the job was seen. Unset: an
  // interrupt ends it.
  std::function<Answer(int, bool)> on_interrupt;
  // Asked after the timeout; there is none any more when following goes on. Unset: the timeout ends it.
  std::function<Answer()> on_timeout;
};

// Shows what happens to `job` until it has ended, and returns it as it is when a worker has written the page about it,
// if one does, or has taken some seconds. Reconnects for as long as it takes, from where it was. Errors: Cancelled when
// interrupted, DeadlineExceeded after the timeout, what Interrupt::Abort was given, or what the coordinator says
// (NotFound).
absl::StatusOr<v1::Job> FollowJob(const v1::Job& job, const FollowOptions& options, CoordinatorClient* client,
                                  Context* context);

// Tells the person how the job ended, with what to do next, and returns the exit code.
int ReportOutcome(const v1::Job& job, OutputForm form, Context* context);

// What a command ends with after FollowJob.
int FollowExit(const absl::StatusOr<v1::Job>& job, const std::string& job_id, OutputForm form, Context* context);

// Prints `status` on stderr, and returns its exit code.
int Fail(const absl::Status& status, Context* context);

}  // namespace tacc::client

#endif  // TACC_CLIENT_TACCCTL_FOLLOW_H_
