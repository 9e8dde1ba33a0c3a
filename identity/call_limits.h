// How often those with a certificate may call, how many of their calls may be open, and who is shut out for a while.
#ifndef TACC_IDENTITY_CALL_LIMITS_H_
#define TACC_IDENTITY_CALL_LIMITS_H_

#include <functional>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "identity/principal.h"
#include "machine/token_bucket.h"

namespace tacc::identity {

// Of each principal by its role, name and project, whichever certificate and connections it has: it keeps some bytes
// for each that has ever called, and there are only those whom the authority has named. Thread-safe.
class CallLimits {
 public:
  // One worker's certificate may be that of all devices. Each has one stream, in which it reports, and comes back by it
  // after a restart of the coordinator; fetching a folder is a call a file.
  struct Limits {
    double calls_per_second = 500;  // Of the last ten seconds, on average.
    int max_open = 10000;           // Calls that have not ended.
    // Calls that it makes though it was told to wait, before it floods; a tenth of them again each second.
    double max_refused = 1000;
    double shut_out_seconds = 10;
  };
  using Floods = std::function<void(const Principal&, const std::string& did)>;
  // `clock` gives steady seconds. `floods`, which may be null, is told of who does not wait, by each call that is one
  // too many.
  CallLimits(Limits limits, std::function<double()> clock, Floods floods = nullptr)
      : limits_(limits), clock_(std::move(clock)), floods_(std::move(floods)) {}

  // Of one more call: OK, or ResourceExhausted with when to try again; Unavailable, for which clients wait, of one that
  // is shut out.
  absl::Status Admit(const Principal& principal);
  // Admits none of its calls for some time, because it `did` what nobody may. Not a worker's: others may have its
  // certificate, whose ranks would be taken for lost.
  void ShutOut(const Principal& principal, std::string did);
  // A call that was admitted has come to its handler, or has ended. Calls on the way between Admit and Begin are not
  // counted as open yet.
  void Begin(const Principal& principal);
  void End(const Principal& principal);

 private:
  struct Caller {
    TokenBucket calls, refused;
    int num_open = 0;
    double shut_out_until = 0;
    std::string did;
  };
  // With the lock held. AdmitCaller says in `floods` whether it has been refused too often.
  Caller& Find(const Principal& principal);
  absl::Status AdmitCaller(const Principal& principal, bool* floods);

  const Limits limits_;
  const std::function<double()> clock_;
  const Floods floods_;
  std::mutex mutex_;
  absl::flat_hash_map<std::string, Caller> callers_;  // By what Describe says.
};

}  // namespace tacc::identity

#endif  // TACC_IDENTITY_CALL_LIMITS_H_
