#include "worker/rank/cuda/device/timer.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/cuda/launch/stream.h"

namespace tacc::worker {
namespace {

void Check(cudaError_t error) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + cudaGetErrorName(error) + ": " + cudaGetErrorString(error));
}

class Event {
 public:
  Event() { Check(cudaEventCreate(&event_)); }
  ~Event() { (void)cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::vector<double> RunSeconds(int repeats, const std::function<void()>& work) {
  const cudaStream_t stream = kernels::cuda::CurrentStream();
  const Event begin, end;
  work();
  std::vector<double> taken;
  for (int i = 0; i < repeats; ++i) {
    Check(cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(std::chrono::duration<double>(kHeadStartSeconds)); }, nullptr));
    Check(cudaEventRecord(begin.get(), stream));
    work();
    Check(cudaEventRecord(end.get(), stream));
    Check(cudaEventSynchronize(end.get()));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
    taken.push_back(static_cast<double>(milliseconds) * 1e-3);
  }
  return taken;
}

double BestSeconds(int repeats, const std::function<void()>& work) {
  const std::vector<double> taken = RunSeconds(repeats, work);
  return *std::min_element(taken.begin(), taken.end());
}

}  // namespace tacc::worker
