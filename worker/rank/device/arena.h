#ifndef TACC_WORKER_RANK_DEVICE_ARENA_H_
#define TACC_WORKER_RANK_DEVICE_ARENA_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace tacc::worker {

// One rank's memory as a planned program lays it out: states, stashes and temporaries at planned offsets, then the
// workspace of kernels that allocate inside. Zero at first; on a host pages are taken from the system when they are
// touched.
class Arena {
 public:
  // The alignment of the arena and of the workspace behind it, in bytes.
  static constexpr int64_t kAlignment = 4096;

  // Errors: ResourceExhausted, naming the bytes, when the system does not grant the addresses.
  static absl::StatusOr<std::unique_ptr<Arena>> Create(int64_t arena_bytes, int64_t workspace_bytes);
  // Other memory, of TotalBytes() and aligned as above; `release` is called with it at the end.
  static std::unique_ptr<Arena> Adopt(char* data, int64_t arena_bytes, int64_t workspace_bytes,
                                      std::function<void(char*)> release);
  // Bytes of an arena with its workspace.
  static int64_t TotalBytes(int64_t arena_bytes, int64_t workspace_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  char* data() const { return data_; }
  int64_t arena_bytes() const { return arena_bytes_; }
  // The workspace: empty when the program needs none.
  absl::Span<char> workspace() const;

  // For tests, of host memory: fills arena and workspace with a pattern that is a NaN in every floating dtype, so that
  // a read of what nothing wrote shows.
  void Poison();
  // For tests, of host memory, after Poison: bytes from the start of the arena up to the last one that has been written
  // (workspace excluded).
  int64_t HighestTouched() const;

 private:
  Arena(char* data, int64_t arena_bytes, int64_t workspace_bytes, std::function<void(char*)> release);

  char* data_;
  int64_t arena_bytes_;
  int64_t workspace_offset_;
  int64_t total_bytes_;
  std::function<void(char*)> release_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_DEVICE_ARENA_H_
