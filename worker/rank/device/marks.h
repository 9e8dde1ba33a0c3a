#ifndef TACC_WORKER_RANK_DEVICE_MARKS_H_
#define TACC_WORKER_RANK_DEVICE_MARKS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "graph/ir/status_macros.h"
#include "worker/rank/device/device.h"

namespace tacc::worker {

// Places in a queue of a device, in the order in which they were set. Marks are used again after Clear: what sets as
// many as the time before makes none.
class Marks {
 public:
  using Create = std::function<absl::StatusOr<std::unique_ptr<Device::Mark>>()>;

  explicit Marks(Create create) : create_(std::move(create)) {}

  // The next place is here. The mark is the object's, and stands there until Clear.
  absl::StatusOr<const Device::Mark*> Set() {
    if (size_ == marks_.size()) {
      TACC_ASSIGN_OR_RETURN(std::unique_ptr<Device::Mark> mark, create_());
      marks_.push_back(std::move(mark));
    }
    Device::Mark* const mark = marks_[size_++].get();
    TACC_RETURN_IF_ERROR(mark->Set());
    return mark;
  }
  // Returns when the device has been at all of them.
  absl::Status Wait() { return size_ == 0 ? absl::OkStatus() : marks_[size_ - 1]->Wait(); }
  void Clear() { size_ = 0; }

  size_t size() const { return size_; }
  const Device::Mark& operator[](size_t index) const { return *marks_[index]; }

 private:
  Create create_;
  std::vector<std::unique_ptr<Device::Mark>> marks_;
  size_t size_ = 0;  // Of marks_, those that stand.
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_MARKS_H_
