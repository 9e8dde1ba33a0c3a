#ifndef TACC_WORKER_RANK_DEVICE_ACTIVITY_H_
#define TACC_WORKER_RANK_DEVICE_ACTIVITY_H_

#include <optional>
#include <vector>

namespace tacc::worker {

// A stretch of time, in seconds of some clock.
struct TimeSpan {
  double begin = 0;
  double end = 0;
};

// Of the time in `parts`, the share in which at least one of `pieces` of work was under way: 0 to 1. Both may overlap
// among themselves, in any order; work outside of the parts does not count, nor does a span that ends before it begins.
// None: the parts take no time.
std::optional<double> ActiveShare(std::vector<TimeSpan> pieces, std::vector<TimeSpan> parts);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_ACTIVITY_H_
