// Messages between two ranks, of which collectives on the host are made.
#ifndef TACC_WORKER_RANK_COLLECTIVES_TRANSPORT_H_
#define TACC_WORKER_RANK_COLLECTIVES_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tacc::worker {

// A message on its way. Its memory must stay, and for a send stay unchanged, until Wait has returned; any thread may
// call that.
class Message {
 public:
  virtual ~Message() = default;
  // Returns when the memory may be used again (send) or is filled (receive). Unavailable: the peer has gone or the
  // time-out passed, the peer's rank is named.
  virtual absl::Status Wait() = 0;
};

// Point-to-point messages between the ranks of one attempt. Messages from one rank to another with the same tag arrive
// in the order in which they were sent; sizes of a send and its receive must be equal. Used by one thread at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int world() const = 0;
  // A number for the machine of `rank`: ranks that have the same share one.
  virtual int machine_of(int rank) const = 0;
  // `num_bytes` > 0, `peer` != rank().
  virtual absl::StatusOr<std::unique_ptr<Message>> Send(int peer, uint32_t tag, const void* data, size_t num_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Message>> Receive(int peer, uint32_t tag, void* data, size_t num_bytes) = 0;
  // Returns when all ranks have called it as often; waits without limit.
  virtual absl::Status WaitForAll() = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_COLLECTIVES_TRANSPORT_H_
