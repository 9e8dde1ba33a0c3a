#ifndef TACC_WORKER_RANK_CUDA_DEVICE_TIMER_H_
#define TACC_WORKER_RANK_CUDA_DEVICE_TIMER_H_

#include <functional>
#include <vector>

namespace tacc::worker {

// The times in seconds that `work`, queued on the current stream (kernels/cuda/launch/stream.h), takes the device in
// `repeats` runs, at least one, after one that does not count: without what the host takes to queue it, up to
// kHeadStartSeconds, for which the device waits before each. Waits for it. Throws where CUDA fails.
inline constexpr double kHeadStartSeconds = 2e-3;
std::vector<double> RunSeconds(int repeats, const std::function<void()>& work);

// The shortest of them.
double BestSeconds(int repeats, const std::function<void()>& work);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_DEVICE_TIMER_H_
