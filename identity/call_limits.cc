#include "identity/call_limits.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tacc::identity {
namespace {

constexpr double kAverageSeconds = 10;

}  // namespace

absl::Status CallLimits::Admit(const Principal& principal) {
  bool floods = false;
  absl::Status status;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    status = AdmitCaller(principal, &floods);
  }
  if (floods && floods_ != nullptr)
    floods_(principal, absl::StrCat("called on ", limits_.max_refused, " times though it was told to wait"));
  return status;
}

absl::Status CallLimits::AdmitCaller(const Principal& principal, bool* floods) {
  Caller& caller = Find(principal);
  const double now = clock_();
  if (now < caller.shut_out_until) {
    return absl::UnavailableError(absl::StrCat(Describe(principal), " is shut out, for it ", caller.did,
                                               "; try again in ", std::ceil(caller.shut_out_until - now), " s"));
  }
  const auto refused = [&] { return principal.role != Role::kWorker && !caller.refused.Take(now); };
  if (caller.num_open >= limits_.max_open) {
    *floods = refused();
    return absl::ResourceExhaustedError(
        absl::StrCat(Describe(principal), " has ", caller.num_open, " calls open, and may have ", limits_.max_open,
                     " (the coordinator's --max-streams); try again when one has ended"));
  }
  if (caller.calls.Take(now)) return absl::OkStatus();
  *floods = refused();
  const double pause = std::ceil(1 / std::min(1.0, limits_.calls_per_second));
  return absl::ResourceExhaustedError(absl::StrCat(Describe(principal), " makes more than ", limits_.calls_per_second,
                                                   " calls a second (the coordinator's --max-calls-per-second); ",
                                                   "try again in ", pause, " s"));
}

void CallLimits::ShutOut(const Principal& principal, std::string did) {
  if (principal.role == Role::kWorker) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Caller& caller = Find(principal);
  caller.shut_out_until = clock_() + limits_.shut_out_seconds;
  caller.did = std::move(did);
}

void CallLimits::Begin(const Principal& principal) {
  std::lock_guard<std::mutex> lock(mutex_);
  ++Find(principal).num_open;
}

void CallLimits::End(const Principal& principal) {
  std::lock_guard<std::mutex> lock(mutex_);
  --Find(principal).num_open;
}

CallLimits::Caller& CallLimits::Find(const Principal& principal) {
  const double at_once = kAverageSeconds * limits_.calls_per_second;
  return callers_
      .try_emplace(Describe(principal),
                   Caller{{limits_.calls_per_second, at_once}, {limits_.max_refused / 10, limits_.max_refused}})
      .first->second;
}

}  // namespace tacc::identity
