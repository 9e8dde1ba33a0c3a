// Files as checkpoints need them: written through to the disk, hashed on the way, every error a Status that names the
// file.
#ifndef TACC_WORKER_CHECKPOINT_FILES_POSIX_FILE_H_
#define TACC_WORKER_CHECKPOINT_FILES_POSIX_FILE_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/files/sha256.h"

namespace tacc::worker {

// Returns "<what>: <text of the errno>". A full disk, quota or file size limit is ResourceExhausted, a missing file
// NotFound, missing rights or a read-only file system PermissionDenied, anything else (an I/O error, a stale handle,
// too many open files) Unavailable.
absl::Status ErrnoStatus(int error, const std::string& what);

// Whether an error of this folder's functions says that files are not there or could not be read or written: it may
// pass. False for what was read and is wrong: InvalidArgument and the like.
bool IsOutage(const absl::Status& status);

// Opens a file to write: O_APPEND, O_EXCL or others beside O_CREAT say how. Never what a link leads to, a pipe or a
// device, whoever put that there: InvalidArgument. Other errors as ErrnoStatus.
absl::StatusOr<int> OpenToWrite(const std::string& path, int flags, mode_t mode);

// A new file being written. Not thread-safe. When it is destroyed before Finish the file stays as it is.
class OutputFile {
 public:
  // Creates the file. One that is there, or a link, is removed before: its other names keep what it held.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  // Writes `num_bytes` bytes at the end and hashes them.
  absl::Status Append(const void* data, size_t num_bytes);

  // Forces the content to the disk and closes the file.
  absl::Status Finish();

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }
  // The SHA-256 of all appended bytes, 64 hex digits. Valid once, after Finish.
  std::string HexDigest() { return sha256_.HexDigest(); }

 private:
  OutputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  std::string path_;
  int fd_;
  int64_t num_bytes_ = 0;
  Sha256 sha256_;
};

// A file opened for reading, piece by piece, not mapped: one that another process cuts short meanwhile is an error, not
// a signal. Files of this kind take half of the descriptors that the process may have; of more of them each is opened
// again for each piece. Thread-safe.
class InputFile {
 public:
  static absl::StatusOr<std::unique_ptr<InputFile>> Open(const std::string& path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const { return path_; }
  int64_t num_bytes() const { return num_bytes_; }
  // Reads the `num_bytes` bytes from `offset` on. InvalidArgument: the file ends before, or another has its name now.
  absl::Status Read(int64_t offset, char* out, int64_t num_bytes) const;

 private:
  InputFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  void Close();
  absl::Status ReadFrom(int fd, int64_t offset, char* out, int64_t num_bytes) const;
  const std::string path_;
  int fd_;  // -1: opened again for each piece.
  int64_t num_bytes_ = 0;
  uint64_t inode_ = 0;
};

// A pipe is waited for: one that whoever may write to a folder has put there, for ever.
enum class Pipes { kRefused, kRead };

// Returns the file's content; InvalidArgument when it is larger than `max_bytes`, or no regular file: then, if they are
// read, pipes and devices are as good.
absl::StatusOr<std::string> ReadSmallFile(const std::string& path, int64_t max_bytes, Pipes pipes = Pipes::kRefused);

// Creates or replaces the file and forces it to the disk.
absl::Status WriteSmallFile(const std::string& path, const std::string& content);

// Returns the file's SHA-256, 64 hex digits, and its size. `progress`, if set, is called for each piece read.
struct FileHash {
  int64_t num_bytes = 0;
  std::string sha256;
};
absl::StatusOr<FileHash> HashFile(const std::string& path, const std::function<void()>& progress = nullptr);

// Forces the directory's entries (creations, renames, removals) to the disk.
absl::Status SyncDirectory(const std::string& path);

// Makes one directory; one that exists already is fine, unless the name is that of a link.
absl::Status MakeDirectory(const std::string& path);

// Returns the names in a directory, sorted, without "." and "..".
absl::StatusOr<std::vector<std::string>> ListDirectory(const std::string& path);

// Removes a file or a directory with all below it; one that does not exist is fine. Links are removed, not followed.
absl::Status RemoveTree(const std::string& path);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_FILES_POSIX_FILE_H_
