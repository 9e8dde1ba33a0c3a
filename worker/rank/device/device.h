#ifndef TACC_WORKER_RANK_DEVICE_DEVICE_H_
#define TACC_WORKER_RANK_DEVICE_DEVICE_H_

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rank/device/activity.h"
#include "worker/rank/device/arena.h"
#include "worker/rank/device/kernel_table.h"
#include "worker/rank/device/measured_attention.h"
#include "worker/rank/device/measured_products.h"
#include "worker/rank/device/region.h"

namespace tacc::worker {

// Where a rank's program runs: memory, kernels, and a queue of work on them.
//
// Work (kernels that the table prepared, and the methods below called "queued") is done in the order of the queue, on
// an asynchronous device at some time after the call has returned. Host memory that it names must stay until then.
// Errors on the device show in a later call. One thread uses the object, which must outlive its marks and recordings.
class Device {
 public:
  virtual ~Device() = default;

  // True: queued work may be unfinished when the call returns, and the device's memory is not the host's. False (a
  // CPU): work is done when the call returns, and both memories are one.
  virtual bool is_asynchronous() const = 0;

  virtual const KernelTable& kernels() const = 0;

  // Allocates the device's memory of a planned program, zeroed: its values, then the workspace, from which kernels take
  // scratch from now on. Called once at most. Errors: ResourceExhausted, with the bytes wanted and free.
  virtual absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t arena_bytes, int64_t workspace_bytes) = 0;
  // Allocates more memory, zeroed: of the device, or of the host, pinned where that makes the device's copies faster.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateDevice(int64_t num_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateHost(int64_t num_bytes) = 0;

  // Queued: copies between regions of the device of equal size, which are the same or do not overlap.
  virtual void Copy(const Region& from, const Region& to) = 0;
  // Queued: fills the region with zeros.
  virtual void Clear(const Region& region) = 0;
  // Queued: copies dense host memory to a region of the device, and back.
  virtual void Upload(const void* host, const Region& to) = 0;
  virtual void Download(const Region& from, void* host) = 0;
  // Queued: *word = value. The word lies in memory of AllocateHost; any thread may read it meanwhile, as an atomic.
  virtual void Publish(uint32_t value, uint32_t* word) = 0;
  // As Upload, but may overtake what was queued earlier. What is queued later comes after it.
  virtual void UploadAhead(const void* host, const Region& to) = 0;

  // Returns when all queued work is done. Errors: of the device (worker/rank/cuda/device/errors.h).
  virtual absl::Status Synchronize() = 0;
  // The first error of the work done so far. Waits for nothing.
  virtual absl::Status Check() { return absl::OkStatus(); }
  // The exception that a kernel threw, as a status: an error as Synchronize gives, else Internal.
  virtual absl::Status StatusOf(const std::exception& exception) const { return absl::InternalError(exception.what()); }

  // Devices with several backends for attention: the time that each backend took, for each shape that a kernel has
  // been prepared for. TakeAttention sets who computes them; it comes before the first call of any of those kernels
  // (worker/rank/tuning/attention_choice.h).
  virtual std::vector<AttentionChoice> MeasuredAttention() const { return {}; }
  virtual void TakeAttention(const std::vector<AttentionChoice>& /*choices*/) {}
  // The same for matrix products, which several algorithms may compute (worker/rank/tuning/product_choice.h).
  virtual std::vector<ProductChoice> MeasuredProducts() const { return {}; }
  // Measures those of `shapes` that were skipped because an earlier choice was found for them.
  virtual void MeasureProducts(const std::vector<std::string>& /*shapes*/) {}
  virtual void TakeProducts(const std::vector<ProductChoice>& /*choices*/) {}

  // Bytes that this process has taken of the device's memory since it opened the device. Measured by what is free, so
  // what others take or free meanwhile counts too. None where the device cannot say (a CPU). Takes part of a
  // millisecond.
  virtual std::optional<int64_t> MemoryUsedBytes() = 0;

  // A place in the queue, or in another queue of the device.
  class Mark {
   public:
    virtual ~Mark() = default;
    // Queued: moves the mark to here.
    virtual absl::Status Set() = 0;
    // Returns when the work before the last Set is done.
    virtual absl::Status Wait() = 0;
    // Seconds between the device passing `earlier`, a mark of any of its queues, and passing this one. The caller has
    // waited for this mark or for a later one. Errors: Unimplemented where marks keep no time (a CPU).
    virtual absl::StatusOr<double> SecondsSince(const Mark& earlier) const = 0;
  };
  // A mark for the queue, and one for the queue in which UploadAhead copies.
  virtual absl::StatusOr<std::unique_ptr<Mark>> CreateMark() = 0;
  virtual absl::StatusOr<std::unique_ptr<Mark>> CreateMarkAhead() = 0;

  // Starts to record when the device works, and sets `origin`, a mark of the queue. Nothing may be in flight; nothing
  // is when it returns. Errors: Unimplemented where the device cannot; others say why it cannot here.
  virtual absl::Status StartActivity(Mark& /*origin*/) { return absl::UnimplementedError("it notes no work"); }
  // Stops, and returns the span of each kernel, copy and clearing in any of the device's queues, replayed ones too: in
  // seconds since `origin`, in any order. Nothing may be in flight.
  virtual absl::StatusOr<std::vector<TimeSpan>> StopActivity() { return absl::UnimplementedError("it notes no work"); }

  // Recorded work, which can be queued any number of times at the cost of one call. The memory that it names must stay.
  class Recording {
   public:
    virtual ~Recording() = default;
    // Queued: all of the recorded work.
    virtual absl::Status Replay() = 0;
  };
  // Records what `queue` queues, without doing it. `queue` must neither wait for the device nor call UploadAhead.
  // Errors: Unimplemented where the device does not record (a CPU); that of `queue`.
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(const std::function<absl::Status()>& queue) = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_DEVICE_H_
