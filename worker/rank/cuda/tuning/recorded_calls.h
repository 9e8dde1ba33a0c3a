// Calls that are timed as a rank's steps run them. Errors are exceptions.
#ifndef TACC_WORKER_RANK_CUDA_TUNING_RECORDED_CALLS_H_
#define TACC_WORKER_RANK_CUDA_TUNING_RECORDED_CALLS_H_

#include <exception>
#include <functional>
#include <string>

#include "worker/rank/device/device.h"

namespace tacc::worker {

// Does `work`, which queues on the device; returns when what it has queued is done.
void DoOn(Device& device, const std::function<void()>& work);

// The shortest time in seconds that `call` takes the device when `num_calls` follow each other, recorded and replayed:
// without what the host takes to queue them. Does it a few times more.
double RecordedSeconds(Device& device, int num_calls, const std::function<void()>& call);

// Of what it says: LibTorch's text goes on with a stack.
std::string FirstLine(const std::exception& error);
// The same, when the error of CUDA that may be behind it has been taken off this thread, where the next kernel would be
// blamed for it.
std::string WhyThrown(const Device& device, const std::exception& error);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TUNING_RECORDED_CALLS_H_
