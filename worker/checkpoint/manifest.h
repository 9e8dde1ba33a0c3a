// The manifest of a checkpoint: what training state it is, and which files hold which part of which tensor
// (docs/contracts.md).
#ifndef TACC_WORKER_CHECKPOINT_MANIFEST_H_
#define TACC_WORKER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint_name.h"
#include "worker/checkpoint/tensors/rectangle.h"

namespace tacc::worker {

inline constexpr char kManifestFileName[] = "manifest.json";
// Steps of a job are counted in 32 bits.
inline constexpr int64_t kMaxStep = INT32_MAX;

struct ManifestFile {
  std::string name;  // Inside the checkpoint's directory.
  int64_t num_bytes = 0;
  std::string sha256;  // 64 hex digits.
};

// One rectangle of a logical tensor. In its file it is a tensor of the logical tensor's name and of the rectangle's
// shape.
struct ManifestSlice {
  std::string file;
  Rectangle rectangle;
};

struct ManifestTensor {
  std::string dtype;                  // As in safetensors.
  std::vector<int64_t> shape;         // Logical.
  std::vector<int64_t> stored_shape;  // As in the model's safetensors: a reshape of the logical shape.
  std::vector<ManifestSlice> slices;  // Of SlicedShape(); each element is in exactly one.
  int64_t merged_dims = 1;            // So many leading dims of the logical shape are one where the slices cut it.

  std::vector<int64_t> SlicedShape() const { return MergedShape(shape, merged_dims); }
};

struct Manifest {
  std::string version;  // Of the program that wrote it.
  std::string job;
  int64_t step = 0;  // Updates done, and so the place in the data.
  int64_t attempt = 0;
  // JSON object of what must be equal for a run to go on from here, as the start file gives it; compared by the
  // coordinator.
  std::string identity = "{}";
  std::map<std::string, int64_t> layout;  // Mesh axis -> size.
  std::vector<ManifestFile> files;
  std::map<std::string, ManifestTensor> tensors;

  // As read; not written.
  bool has_checksum = false;  // Format 1 has none: a changed value may go unnoticed.
  std::string sha256;         // Of its text, 64 hex digits: no other manifest has it.
};

// Returns the JSON text, sealed (sealed_json.h) and ending in a newline. Equal manifests give equal texts. `identity`
// must be a JSON object.
std::string ManifestToJson(const Manifest& manifest);

// kComplete: the slices of each tensor hold all of it. kPart: they may hold a part (the description of one rank's
// shard).
enum class ManifestSlices { kComplete, kPart };

// Parses and checks: the checksum (of format 2, which ManifestToJson writes; format 1 has none), every field there and
// of its type, and CheckManifest. `path` is for messages. InvalidArgument names path, field and tensor.
absl::StatusOr<Manifest> ManifestFromJson(const std::string& text, const std::string& path, ManifestSlices slices);

// Checks that step and attempt are in their ranges, that file names are plain and hashes
// well-formed, and that slices are in listed files (one of a tensor in each), inside their tensors and disjoint.
absl::Status CheckManifest(const Manifest& manifest, const std::string& path, ManifestSlices slices);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_MANIFEST_H_
