#include "worker/rank/timing/gap_trace.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "machine/clock.h"
#include "worker/rank/device/activity.h"

namespace tacc::worker {

void GapTrace::TakeStatus(const absl::Status& status) {
  if (status.ok()) return;
  next_step_ = std::numeric_limits<int64_t>::max();
  if (absl::IsUnimplemented(status)) return;
  events_.Log(absl::StrCat(
      "no step is traced", active_share_.has_value() ? " any more" : "", ", so ",
      active_share_.has_value() ? "device_idle_share goes on with the gaps seen last" : "device_idle_share is left out",
      ": ", status.message()));
}

absl::Status GapTrace::Start() {
  if (origin_ == nullptr) {
    TACC_ASSIGN_OR_RETURN(origin_, device_.CreateMark());
  }
  TACC_RETURN_IF_ERROR(device_.StartActivity(*origin_));
  is_tracing_ = true;
  return absl::OkStatus();
}

void GapTrace::WarmUp() {
  absl::Status status = Start();
  if (std::exchange(is_tracing_, false)) status = device_.StopActivity().status();
  TakeStatus(status);
}

void GapTrace::Begin() {
  const double begin = SteadySeconds();
  TakeStatus(Start());
  start_seconds_ = SteadySeconds() - begin;
}

absl::Status GapTrace::Stop(const Executor& executor) {
  const double begin = SteadySeconds();
  TACC_ASSIGN_OR_RETURN(std::vector<TimeSpan> pieces, device_.StopActivity());
  TACC_ASSIGN_OR_RETURN(std::vector<TimeSpan> parts, executor.BusyParts(*origin_));
  const size_t num_pieces = pieces.size();
  if (num_pieces == 0) return absl::InternalError("nothing was seen to run");
  const std::optional<double> share = ActiveShare(std::move(pieces), std::move(parts));
  if (!share.has_value()) return absl::InternalError("the step took no time");
  active_share_ = share;
  events_.Log(absl::StrCat("of the time of a step's graphs the GPU worked in ", 100 * *share, " %, as a trace of ",
                           num_pieces, " kernels, copies and clearings says, which took ",
                           start_seconds_ + SteadySeconds() - begin, " s beside the step"));
  return absl::OkStatus();
}

void GapTrace::End(const Executor& executor) {
  if (!std::exchange(is_tracing_, false)) return;
  next_step_ *= kFactor;
  TakeStatus(Stop(executor));
}

std::optional<double> GapTrace::ActiveSeconds(std::optional<double> busy_seconds) const {
  if (!busy_seconds.has_value() || !active_share_.has_value()) return std::nullopt;
  return *busy_seconds * *active_share_;
}

}  // namespace tacc::worker
