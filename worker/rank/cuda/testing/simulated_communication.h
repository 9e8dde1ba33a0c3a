#ifndef TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_COMMUNICATION_H_
#define TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_COMMUNICATION_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "absl/time/time.h"
#include "worker/rank/collectives/transport.h"
#include "worker/rank/cuda/collectives/call_watch.h"
#include "worker/rank/cuda/collectives/communication.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// For tests: a device's queues as threads of the host, on host memory. Nothing is done before the host waits, and one
// of the queues may be slow, so that an order that nobody asked for does not come about by luck. What waits for another
// rank ends with the transport's time-out; where somebody watches, with the first one after the abort.
//
// Groups hold their callers to what NCCL asks, where it would hang or mix up data: splits that a rank makes in another
// order than others, or in another group; members that call something else, in another order or of another size;
// memory that overlaps otherwise than in place; a first call, in which members connect, that is recorded. They gather
// and sum around a ring of the members in their order. Sums begin for each part elsewhere and are rounded to its type
// at each rank, as NCCL's may be, so they are other bits than sums in order.
class SimulatedCommunication : public Communication {
 public:
  enum class Slow { kNone, kCompute, kCommunication, kCopies };

  // That a rank of a group sends the next beside each collective's own.
  static constexpr int64_t kHeaderBytes = 56;

  // `transport` and `status`, which may be null, must outlive the object. `timeout`: of a call; infinite: nobody
  // watches.
  SimulatedCommunication(Transport* transport, Slow slow, absl::Duration timeout = absl::InfiniteDuration(),
                         StatusBlock* status = nullptr);
  ~SimulatedCommunication() override;

  int rank() const override;
  int machine_of(int rank) const override { return transport_.machine_of(rank); }
  absl::StatusOr<std::unique_ptr<Arena>> AllocateStaging(int64_t num_bytes) override;
  absl::StatusOr<CommunicationStream*> CollectiveStream() override;
  absl::StatusOr<GroupCollectives*> Group(const std::vector<int>& members) override;
  absl::StatusOr<CommunicationStream*> MessageStream(uint32_t channel, int from, int to) override;
  absl::Status Connect() override;
  absl::Status EnterCall(uint32_t call) override;
  absl::Status Check() override;
  // Where somebody watches.
  CollectiveProgress Progress() const override { return watch_.Progress(); }

  // As ncclCommSplit of a communicator of all ranks, which all of them call as often: the ranks that give the same
  // color, by their keys; none of a negative one.
  absl::StatusOr<std::vector<int>> Split(int color, int key);

  // Queued on compute.
  void Compute(std::function<void()> work);
  // Queued beside compute; what compute is given from now on comes after it. Not while recording.
  void CopyAhead(std::function<void()> work);
  // A place in compute, and among those copies.
  std::unique_ptr<Device::Mark> CreateMark();
  std::unique_ptr<Device::Mark> CreateMarkAhead();
  // Lets the queues do what they have been given until compute has done all that it has been given. Not Ok: the first
  // error of a message.
  absl::Status Synchronize();
  // From now on Check returns it.
  void Fail(absl::Status status);

  // What `queue` queues, to be queued any number of times. Errors: its; Internal where CUDA would refuse to record it,
  // or not record it: a queue that has not followed compute here, a wait for what lies outside, a queue that compute
  // does not follow at the end.
  absl::StatusOr<std::function<void()>> Record(const std::function<absl::Status()>& queue);

  int num_allocations() const { return num_allocations_; }
  // That its queues have packed and unpacked.
  int64_t packed_bytes() const { return packed_bytes_; }
  // Timed marks that its communication streams have made.
  int num_timed_marks() const { return num_timed_marks_; }
  // Calls that the queues have begun and ended.
  int64_t num_begun() const;
  int64_t num_ended() const;
  int num_aborts() const { return num_aborts_; }

 private:
  class Queue;
  class Stream;
  class SimulatedGroup;
  class TimedMark;
  struct Place;
  struct State;
  struct Recording;

  // All ranks' words, which are equally many.
  absl::StatusOr<std::vector<std::vector<uint64_t>>> Gather(const std::vector<uint64_t>& words);

  // Lets the queues do what they have been given until the place, of any of them, is reached.
  void WaitFor(const Place& place);

  // Does `action`, which queues something, or notes it while recording.
  void Do(std::function<void()> action);
  bool IsWatched() const { return timeout_ < absl::InfiniteDuration(); }
  // 0: not recording.
  int64_t RecordingNumber() const;

  std::shared_ptr<State> state_;
  Transport& transport_;
  const Slow slow_;
  const absl::Duration timeout_;
  StatusBlock* const status_;
  int num_allocations_ = 0, num_timed_marks_ = 0;
  std::atomic<int64_t> packed_bytes_ = 0;
  std::atomic<int> num_aborts_ = 0;
  uint32_t place_ = 0;  // Of compute.
  uint32_t current_call_ = 0;
  Recording* recording_ = nullptr;  // While recording.
  int64_t num_recordings_ = 0;
  uint64_t num_splits_ = 0;
  std::map<std::vector<int>, std::unique_ptr<SimulatedGroup>> groups_;  // Outlive the queue that works for them.
  std::map<std::tuple<uint32_t, int, int>, std::unique_ptr<Stream>> streams_;
  std::unique_ptr<Queue> compute_, copies_;
  CallWatch watch_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_CUDA_TESTING_SIMULATED_COMMUNICATION_H_
