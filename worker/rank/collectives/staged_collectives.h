#ifndef TACC_WORKER_RANK_COLLECTIVES_STAGED_COLLECTIVES_H_
#define TACC_WORKER_RANK_COLLECTIVES_STAGED_COLLECTIVES_H_

#include <map>
#include <memory>
#include <vector>

#include "worker/rank/collectives/collectives.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// Collectives between ranks on asynchronous devices by way of the host's memory: what is sent is copied out, travels as
// between CPUs, and what has come is copied in. Each waits for the device, so it is for correctness (two ranks on one
// GPU, a network without RDMA), not for speed. Not thread-safe.
class StagedCollectives : public CollectiveQueue {
 public:
  // Both must outlive the object.
  StagedCollectives(Device* device, CollectiveQueue* host) : device_(*device), host_(*host) {}

  absl::Status Prepare(const CollectiveCall* call) override;
  absl::StatusOr<Ticket> Start(const CollectiveCall* call) override;
  absl::Status Wait(Ticket ticket) override;
  absl::Status Finish(const CollectiveCall& call, Ticket ticket) override;
  absl::Status Run(const CollectiveCall& call) override;
  absl::Status StartTiming() override { return host_.StartTiming(); }
  absl::StatusOr<std::vector<CollectiveTime>> TakeTimes(const DeviceClock& clock) override {
    return host_.TakeTimes(clock);
  }
  bool is_on_device() const override { return false; }

 private:
  // A call on host memory, dense, in place of one on the device's.
  struct Staged {
    const CollectiveCall* call = nullptr;
    CollectiveCall on_host;
    std::unique_ptr<Arena> memory;
  };

  absl::StatusOr<Staged*> Find(const CollectiveCall* call);
  void CopyIn(const Staged& staged);

  Device& device_;
  CollectiveQueue& host_;
  std::map<const CollectiveCall*, Staged> staged_;
  std::map<Ticket, Staged*> under_way_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_STAGED_COLLECTIVES_H_
