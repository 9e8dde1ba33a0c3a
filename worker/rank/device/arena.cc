#include "worker/rank/device/arena.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tacc::worker {
namespace {

// A NaN as bf16, f16, and twice or four times over as f32 and f64.
constexpr uint16_t kPoison = 0x7ff1;

int64_t RoundUp(int64_t bytes) { return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment; }

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> Arena::Create(int64_t arena_bytes, int64_t workspace_bytes) {
  if (arena_bytes < 0 || workspace_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("arena of ", arena_bytes, " bytes with a workspace of ",
                                                   workspace_bytes, " bytes: sizes must not be negative"));
  }
  const int64_t total = TotalBytes(arena_bytes, workspace_bytes);
  void* data = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the arena of ", total, " bytes cannot be mapped: ", std::strerror(errno)));
  }
  // Only advice: a system without huge pages runs the same, slower.
  (void)madvise(data, total, MADV_HUGEPAGE);
  return Adopt(static_cast<char*>(data), arena_bytes, workspace_bytes,
               [total](char* memory) { munmap(memory, total); });
}

std::unique_ptr<Arena> Arena::Adopt(char* data, int64_t arena_bytes, int64_t workspace_bytes,
                                    std::function<void(char*)> release) {
  return std::unique_ptr<Arena>(new Arena(data, arena_bytes, workspace_bytes, std::move(release)));
}

int64_t Arena::TotalBytes(int64_t arena_bytes, int64_t workspace_bytes) {
  return std::max<int64_t>(RoundUp(arena_bytes) + RoundUp(workspace_bytes), kAlignment);
}

Arena::Arena(char* data, int64_t arena_bytes, int64_t workspace_bytes, std::function<void(char*)> release)
    : data_(data),
      arena_bytes_(arena_bytes),
      workspace_offset_(RoundUp(arena_bytes)),
      total_bytes_(TotalBytes(arena_bytes, workspace_bytes)),
      release_(std::move(release)) {}

Arena::~Arena() { release_(data_); }

absl::Span<char> Arena::workspace() const {
  return absl::Span<char>(data_ + workspace_offset_, total_bytes_ - workspace_offset_);
}

void Arena::Poison() {
  uint16_t* words = reinterpret_cast<uint16_t*>(data_);
  std::fill(words, words + total_bytes_ / sizeof(uint16_t), kPoison);
}

int64_t Arena::HighestTouched() const {
  const uint16_t* words = reinterpret_cast<const uint16_t*>(data_);
  int64_t n = workspace_offset_ / static_cast<int64_t>(sizeof(uint16_t));
  while (n > 0 && words[n - 1] == kPoison) --n;
  return n * static_cast<int64_t>(sizeof(uint16_t));
}

}  // namespace tacc::worker
