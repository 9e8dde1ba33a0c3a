#ifndef TACC_WORKER_RANK_CUDA_TIMER_H_
#define TACC_WORKER_RANK_CUDA_TIMER_H_

#include <functional>

namespace tacc::worker {

// The shortest time in seconds that `work`, queued on the current stream (kernels/cuda/stream.h), takes the device, of
// `repeats` runs after one that does not count. Waits for it. Throws where CUDA fails.
double BestSeconds(int repeats, const std::function<void()>& work);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TIMER_H_
