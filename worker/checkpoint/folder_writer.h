// Who writes a checkpoint.dir now: DIR/writer.json. Locks do not reach from host to host everywhere; a file does.
#ifndef TACC_WORKER_CHECKPOINT_FOLDER_WRITER_H_
#define TACC_WORKER_CHECKPOINT_FOLDER_WRITER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"

namespace tacc::worker {

inline constexpr char kWriterFileName[] = "writer.json";
// Where it is written before it is renamed into place.
inline constexpr char kTemporaryWriterPrefix[] = ".tmp-writer-";

// One attempt of one job. The daemon of rank 0 writes it before the attempt, rank 0 renews it; who finds another there
// publishes nothing.
struct FolderWriter {
  std::string service;       // Whose job: of a coordinator, no other has it.
  std::string job;           // Its id, which a job of another service may have too.
  int64_t attempt = 0;       // 0: its rank 0 has not begun.
  int64_t last_attempt = 0;  // The highest of the jobs that wrote there before.
  std::string host;          // Of who wrote it last,
  int64_t pid = 0;           // and its process.
  double since = 0;          // When the job claimed the folder, and
  double renewed = 0;        // when this was written: seconds since the epoch, by the writer's clock.
  bool has_ended = false;    // It writes no more.
  std::string locked_boot;   // Of a job that holds the lock of the folder (machine/folder_lock): its machine's boot id.
};

// Nothing where there is no such file, or one that says nothing. Errors: as ErrnoStatus.
absl::StatusOr<absl::optional<FolderWriter>> ReadFolderWriter(const std::string& dir);

// Replaces the file in one step, with this host, process and time. It is not forced to the disk: it is for who looks
// meanwhile.
absl::Status WriteFolderWriter(const std::string& dir, FolderWriter writer);

// "checkpoint.dir /runs/a is used by job a-1 of another service (attempt 2, pid 7 on b, since 2026-01-31 12:00:00
// UTC)", said to a job of `service`.
std::string FolderUser(const std::string& dir, const FolderWriter& writer, const std::string& service);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_FOLDER_WRITER_H_
