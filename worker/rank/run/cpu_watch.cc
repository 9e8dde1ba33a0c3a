#include "worker/rank/run/cpu_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tacc::worker {

double CpuWatch::Take(double steady_seconds, bool is_saving) {
  if (is_saving) {
    BeginAnew();
    return share_;
  }
  if (begin_.has_value() && steady_seconds - begin_->steady_seconds < kWindowSeconds) return share_;
  Reading end = {steady_seconds, read_()};
  if (begin_.has_value()) {
    double longest = 0;
    for (const auto& [thread, seconds] : end.waits) {
      const auto before = begin_->waits.find(thread);
      if (before != begin_->waits.end()) longest = std::max(longest, seconds - before->second);
    }
    share_ = std::min(1.0, longest / (steady_seconds - begin_->steady_seconds));
  }
  begin_ = std::move(end);
  return share_;
}

std::string CpuWatch::Warning(int64_t rank, double share) {
  if (share < kMostShare) return "";
  return absl::StrCat(
      "rank ", rank, " had work and waited for a processor in ", absl::StrFormat("%.0f %%", 100 * share),
      " of the last half minute: other processes use its processors, or other ranks do, where there are "
      "more than processors, or its own threads do, where they are more, or its container may use less of them "
      "(cpu.max), and its steps take longer. Look with `top -H`; end what is not needed, give each worker processors "
      "of its own (start tacc-worker under "
      "`taskset -c`), or take fewer workers (resources.workers)");
}

}  // namespace tacc::worker
