// Reading checkpoints: which of a directory can be trusted, and any rectangle of any tensor from whatever slices exist.
#ifndef TACC_WORKER_CHECKPOINT_READER_H_
#define TACC_WORKER_CHECKPOINT_READER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/manifest.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {

// An opened checkpoint. Immutable, thread-safe.
class Checkpoint {
 public:
  // Opens `path` (.../step-N.aK) and checks everything but the data's checksums: the manifest, that each file is there
  // with its size, and that its tensors are those of the manifest. InvalidArgument names the damaged file. IsOutage: it
  // could not be read (NotFound: it, or a file of it, is not there), so whether it is whole is not known.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const std::string& path() const { return path_; }
  const Manifest& manifest() const { return manifest_; }

  // Checks the SHA-256 of the files first, first + stride, ... of the manifest, so that several ranks can share the
  // work; VerifyData(0, 1) checks all. `progress`, if set, is called for each piece read. Errors as Open's.
  absl::Status VerifyData(size_t first, size_t stride, const std::function<void()>& progress = nullptr) const;

  // Reads a rectangle of a logical tensor to `out`, dense and row-major, in the tensor's own dtype. NotFound,
  // InvalidArgument name the tensor; or, of a file that was cut short since Open or cannot be read, the file.
  absl::Status Read(const std::string& name, const Rectangle& rectangle, void* out) const;

 private:
  Checkpoint(std::string path, Manifest manifest) : path_(std::move(path)), manifest_(std::move(manifest)) {}
  std::string path_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
};

struct CheckpointEntry {
  CheckpointId id;
  std::string name;
  absl::Status status;  // OK: can be used. InvalidArgument: damaged; says which file.
};

// Opens the checkpoints of a directory (Checkpoint::Open: the data's checksums are not verified) and lists them, newest
// first (by step, then attempt), damaged ones with their error; unfinished ones and other files are left out.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& checkpoint_dir);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_READER_H_
