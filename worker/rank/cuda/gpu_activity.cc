#include "worker/rank/cuda/gpu_activity.h"

#include <cupti.h>

#include <cstddef>
#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "graph/ir/status_macros.h"

namespace tacc::worker {
namespace {

using Piece = GpuActivity::Piece;

// Of host memory, for records of 100 to 250 bytes.
constexpr size_t kBufferBytes = 1 << 20, kBufferAlignment = 8;

constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                         CUPTI_ACTIVITY_KIND_MEMSET};

absl::Status CuptiStatus(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  (void)cuptiGetResultString(result, &name);
  return absl::InternalError(absl::StrCat("CUPTI, ", what, ": ", name == nullptr ? "error" : name, " (", result, ")"));
}

// What CUPTI has told since Start. Its callbacks, on threads of its own too, are functions without an argument of ours.
struct Told {
  absl::Mutex mutex;
  std::vector<Piece> pieces ABSL_GUARDED_BY(mutex);
  int64_t num_without_times ABSL_GUARDED_BY(mutex) = 0;
  size_t num_dropped ABSL_GUARDED_BY(mutex) = 0;
};

Told& TheTold() {
  static Told* const told = new Told;  // For as long as CUPTI's threads live.
  return *told;
}

void Add(Piece::Kind kind, uint64_t begin, uint64_t end) {
  Told& told = TheTold();
  absl::MutexLock lock(&told.mutex);
  if (begin == 0 || end < begin) {
    ++told.num_without_times;
  } else {
    told.pieces.push_back({kind, static_cast<int64_t>(begin), static_cast<int64_t>(end)});
  }
}

void Add(const CUpti_Activity& record) {
  switch (record.kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto& kernel = reinterpret_cast<const CUpti_ActivityKernel10&>(record);
      return Add(Piece::Kind::kKernel, kernel.start, kernel.end);
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto& copy = reinterpret_cast<const CUpti_ActivityMemcpy6&>(record);
      return Add(Piece::Kind::kCopy, copy.start, copy.end);
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto& memset = reinterpret_cast<const CUpti_ActivityMemset4&>(record);
      return Add(Piece::Kind::kMemset, memset.start, memset.end);
    }
    default:
      return;
  }
}

void CUPTIAPI GiveBuffer(uint8_t** buffer, size_t* bytes, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(kBufferAlignment, kBufferBytes));
  *bytes = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // As many as fit.
}

void CUPTIAPI TakeBuffer(CUcontext context, uint32_t stream, uint8_t* buffer, size_t, size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (valid_bytes > 0 && cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) Add(*record);
  std::free(buffer);
  size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) != CUPTI_SUCCESS) return;
  Told& told = TheTold();
  absl::MutexLock lock(&told.mutex);
  told.num_dropped += dropped;
}

// Each of them, also after one has failed.
absl::Status Disable() {
  absl::Status status;
  for (const CUpti_ActivityKind kind : kKinds) status.Update(CuptiStatus(cuptiActivityDisable(kind), "ending a trace"));
  return status;
}

absl::Status Enable() {
  TACC_RETURN_IF_ERROR(CuptiStatus(cuptiActivityRegisterCallbacks(GiveBuffer, TakeBuffer), "beginning a trace"));
  for (const CUpti_ActivityKind kind : kKinds)
    TACC_RETURN_IF_ERROR(CuptiStatus(cuptiActivityEnable(kind), "beginning a trace"));
  return absl::OkStatus();
}

}  // namespace

absl::Status GpuActivity::Start() {
  // Where it cannot be (confidential computing) they are the GPU's, out of the reserve.
  uint8_t in_host_memory = 1;
  size_t bytes = sizeof(in_host_memory);
  (void)cuptiActivitySetAttribute(CUPTI_ACTIVITY_ATTR_MEM_ALLOCATION_TYPE_HOST_PINNED, &bytes, &in_host_memory);
  {
    Told& told = TheTold();
    absl::MutexLock lock(&told.mutex);
    told.pieces.clear();
    told.num_without_times = 0;
    told.num_dropped = 0;
  }
  absl::Status status = Enable();
  if (!status.ok()) (void)Disable();
  return status;
}

absl::StatusOr<std::vector<Piece>> GpuActivity::Stop() {
  // All of it, for all has ended.
  absl::Status status = CuptiStatus(cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), "reading a trace");
  status.Update(Disable());
  TACC_RETURN_IF_ERROR(status);
  Told& told = TheTold();
  absl::MutexLock lock(&told.mutex);
  if (told.num_dropped > 0 || told.num_without_times > 0) {
    return absl::InternalError(
        absl::StrCat("CUPTI has lost ", told.num_dropped, " records, and ", told.num_without_times, " of the other ",
                     told.pieces.size() + static_cast<size_t>(told.num_without_times), " have no time"));
  }
  return std::exchange(told.pieces, {});
}

}  // namespace tacc::worker
