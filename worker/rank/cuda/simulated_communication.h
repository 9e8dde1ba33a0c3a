#ifndef TACC_WORKER_RANK_CUDA_SIMULATED_COMMUNICATION_H_
#define TACC_WORKER_RANK_CUDA_SIMULATED_COMMUNICATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "worker/rank/cuda/device_collectives.h"
#include "worker/rank/transport.h"

namespace tacc::worker {

// For tests: a device's queues as threads of the host, on host memory. Nothing is done before Synchronize, and one of
// the queues is slow, so that an order that nobody asked for does not come about by luck.
class SimulatedCommunication : public Communication {
 public:
  enum class Slow { kCompute, kCommunication };

  // `transport` must outlive the object.
  SimulatedCommunication(Transport* transport, Slow slow);
  ~SimulatedCommunication() override;

  int rank() const override;
  absl::StatusOr<std::unique_ptr<Arena>> AllocateStaging(int64_t num_bytes) override;
  absl::StatusOr<CommunicationStream*> CollectiveStream() override;
  absl::StatusOr<CommunicationStream*> MessageStream(uint32_t channel, int from, int to) override;
  absl::Status Connect() override;
  absl::Status Check() override;

  // Queued on compute.
  void Compute(std::function<void()> work);
  // Lets the queues begin, and returns when compute is done. Not Ok: the first error of a message.
  absl::Status Synchronize();
  // From now on Check returns it.
  void Fail(absl::Status status);

  int num_allocations() const { return num_allocations_; }
  int64_t num_begun() const { return num_begun_; }
  int64_t num_ended() const { return num_ended_; }

 private:
  class Queue;
  class Stream;
  struct State;

  std::shared_ptr<State> state_;
  Transport& transport_;
  const Slow slow_;
  int num_allocations_ = 0;
  int64_t num_begun_ = 0, num_ended_ = 0;
  std::map<std::tuple<uint32_t, int, int>, std::unique_ptr<Stream>> streams_;
  std::unique_ptr<Queue> compute_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_SIMULATED_COMMUNICATION_H_
