#ifndef TACC_WORKER_RANK_SESSION_RING_H_
#define TACC_WORKER_RANK_SESSION_RING_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace tacc::worker {

// A client's memory, mapped to be read: its batches lie there for all ranks of its machine.
class Ring {
 public:
  // Maps the memory of a memfd, which stays the caller's. InvalidArgument: it is none, or could be made smaller while
  // it is read.
  static absl::StatusOr<std::shared_ptr<const Ring>> Map(int fd);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  const char* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  Ring(const char* data, int64_t size) : data_(data), size_(size) {}
  const char* const data_;
  const int64_t size_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_SESSION_RING_H_
