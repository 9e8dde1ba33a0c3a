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
// an asynchronous device at some time after the call has returned. Until then host memory that it names must stay. What
// goes wrong on the device shows in a later call. One thread uses the object.
class Device {
 public:
  virtual ~Device() = default;

  // Whether queued work may still have to be done when the call returns, and host memory is other memory than the
  // device's. On a CPU neither.
  virtual bool is_asynchronous() const = 0;

  virtual const KernelTable& kernels() const = 0;

  // One allocation of the device's memory, zeros: values of a planned program, then the workspace, from which kernels
  // take scratch from now on. Called once at most. ResourceExhausted: names the bytes that are there.
  virtual absl::StatusOr<std::unique_ptr<Arena>> CreateArena(int64_t arena_bytes, int64_t workspace_bytes) = 0;
  // More memory of the device, or of the host as the device copies fastest to and from (pinned); zeros.
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateDevice(int64_t num_bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Arena>> AllocateHost(int64_t num_bytes) = 0;

  // Queued: between regions of the device of equal size that do not overlap, or are the same.
  virtual void Copy(const Region& from, const Region& to) = 0;
  // Queued: zeros.
  virtual void Clear(const Region& region) = 0;
  // Queued: between dense host memory and a region of the device.
  virtual void Upload(const void* host, const Region& to) = 0;
  virtual void Download(const Region& from, void* host) = 0;
  // Queued: *word = value, in memory of AllocateHost that any thread may read meanwhile, as an atomic.
  virtual void Publish(uint32_t value, uint32_t* word) = 0;
  // As Upload, but may be done before what was queued earlier; what is queued later comes after it.
  virtual void UploadAhead(const void* host, const Region& to) = 0;

  // Returns when all that has been queued is done. Errors: of the device (worker/rank/cuda/device/errors.h).
  virtual absl::Status Synchronize() = 0;
  // The first error of the device in what it has done so far; waits for nothing.
  virtual absl::Status Check() { return absl::OkStatus(); }
  // What an exception that a kernel threw says; errors as of Synchronize, else Internal.
  virtual absl::Status StatusOf(const std::exception& exception) const { return absl::InternalError(exception.what()); }

  // Where several backends may compute attention: what each took, of the shapes that kernels have been prepared for;
  // and who computes them, to be said before any of those kernels is called (worker/rank/tuning/attention_choice.h).
  virtual std::vector<AttentionChoice> MeasuredAttention() const { return {}; }
  virtual void TakeAttention(const std::vector<AttentionChoice>& /*choices*/) {}
  // The same of matrix products that several algorithms may compute (worker/rank/tuning/product_choice.h).
  virtual std::vector<ProductChoice> MeasuredProducts() const { return {}; }
  // Those of these shapes that were not measured, for their earlier choice was found.
  virtual void MeasureProducts(const std::vector<std::string>& /*shapes*/) {}
  virtual void TakeProducts(const std::vector<ProductChoice>& /*choices*/) {}

  // Of the device's memory, what this process holds: by as much less is free than when it opened the device. None where
  // the device cannot say (a CPU). Takes part of a millisecond.
  virtual std::optional<int64_t> MemoryUsedBytes() = 0;

  // A place in the queue, or in another that the device has beside it.
  class Mark {
   public:
    virtual ~Mark() = default;
    // Queued: the place is here.
    virtual absl::Status Set() = 0;
    // Returns when the work before the place, as set last, is done.
    virtual absl::Status Wait() = 0;
    // Seconds from when the device was at `earlier`, of any of its queues, to when it was here; a wait for this one, or
    // for what comes after it, has returned. Unimplemented: it keeps no time (a CPU).
    virtual absl::StatusOr<double> SecondsSince(const Mark& earlier) const = 0;
  };
  // Of the queue, and of the one in which UploadAhead copies.
  virtual absl::StatusOr<std::unique_ptr<Mark>> CreateMark() = 0;
  virtual absl::StatusOr<std::unique_ptr<Mark>> CreateMarkAhead() = 0;

  // From here on the device notes when it works. Sets `origin`, a mark of the queue. Nothing is in flight, before or
  // when it returns. Unimplemented: it cannot; other errors say why it cannot here.
  virtual absl::Status StartActivity(Mark& /*origin*/) { return absl::UnimplementedError("it notes no work"); }
  // To here. When it worked: each kernel, copy and clearing of all of its queues, recorded ones too, in seconds since
  // `origin`, in any order. Nothing is in flight.
  virtual absl::StatusOr<std::vector<TimeSpan>> StopActivity() { return absl::UnimplementedError("it notes no work"); }

  // Work that was recorded instead of done, to be queued any number of times at the cost of one call.
  class Recording {
   public:
    virtual ~Recording() = default;
    // Queued.
    virtual absl::Status Replay() = 0;
  };
  // Records what `queue` queues; it must not wait for the device, nor call UploadAhead. Unimplemented: the device does
  // not record (a CPU).
  virtual absl::StatusOr<std::unique_ptr<Recording>> Record(const std::function<absl::Status()>& queue) = 0;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_DEVICE_H_
