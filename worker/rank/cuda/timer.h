#ifndef TACC_WORKER_RANK_CUDA_TIMER_H_
#define TACC_WORKER_RANK_CUDA_TIMER_H_

#include <functional>
#include <vector>

namespace tacc::worker {

// The times in seconds that `work`, queued on the current stream (kernels/cuda/stream.h), takes the device in `repeats`
// runs, at least one, after one that does not count. Waits for it. Throws where CUDA fails.
std::vector<double> RunSeconds(int repeats, const std::function<void()>& work);

// The shortest of them.
double BestSeconds(int repeats, const std::function<void()>& work);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TIMER_H_
