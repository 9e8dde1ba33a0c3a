#include "worker/checkpoint/writer.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {
namespace {

// Bounds what CommitCheckpoint reads of another rank's description.
constexpr int64_t kMaxDescriptionBytes = 256 << 20;

std::string ShardName(int rank) { return absl::StrFormat("rank-%05d.safetensors", rank); }
std::string DescriptionName(int rank) { return absl::StrFormat("rank-%05d.json", rank); }

absl::Status Hit(Failpoints* failpoints, const char* name) {
  return failpoints == nullptr ? absl::OkStatus() : failpoints->Hit(name);
}

absl::StatusOr<FileHash> WriteTensors(const std::string& path, const std::vector<ShardTensor>& tensors) {
  std::vector<SafetensorsWriter::Tensor> declared;
  for (const ShardTensor& tensor : tensors) declared.push_back({tensor.name, tensor.dtype, tensor.rectangle.shape});
  absl::StatusOr<std::unique_ptr<SafetensorsWriter>> writer = SafetensorsWriter::Create(path, declared, {});
  if (!writer.ok()) return writer.status();
  for (const ShardTensor& tensor : tensors) {
    // Create has checked dtype and shape.
    const int64_t num_bytes = *NumElements(tensor.rectangle.shape) * *DtypeBytes(tensor.dtype);
    if (absl::Status status = (*writer)->Append(tensor.data, num_bytes); !status.ok()) return status;
  }
  return (*writer)->Finish();
}

absl::Status WriteShardFiles(const std::string& directory, const CheckpointId& id, int rank,
                             const std::vector<ShardTensor>& tensors, Failpoints* failpoints) {
  for (const ShardTensor& tensor : tensors) {
    const std::vector<int64_t> sliced = MergedShape(tensor.shape, tensor.merged_dims);
    if (!IsInside(tensor.rectangle, sliced)) {
      return absl::InvalidArgumentError(absl::StrCat("checkpoint tensor \"", tensor.name,
                                                     "\": ", RectangleText(tensor.rectangle), " is not inside ",
                                                     ShapeText(sliced)));
    }
  }
  // The description is a manifest of one file; its slices do not cover the tensors.
  Manifest description;
  description.step = id.step;
  description.attempt = id.attempt;
  if (!tensors.empty()) {
    absl::StatusOr<FileHash> hash = WriteTensors(absl::StrCat(directory, "/", ShardName(rank)), tensors);
    if (!hash.ok()) return hash.status();
    description.files.push_back({ShardName(rank), hash->num_bytes, hash->sha256});
  }
  for (const ShardTensor& tensor : tensors) {
    description.tensors[tensor.name] = {
        tensor.dtype, tensor.shape, tensor.stored_shape, {{ShardName(rank), tensor.rectangle}}, tensor.merged_dims};
  }
  if (absl::Status status = Hit(failpoints, "after_shard_write"); !status.ok()) return status;
  return WriteSmallFile(absl::StrCat(directory, "/", DescriptionName(rank)), ManifestToJson(description));
}

// Adds one rank's description to the manifest.
absl::Status Merge(const Manifest& description, const std::string& path, Manifest* manifest) {
  manifest->files.insert(manifest->files.end(), description.files.begin(), description.files.end());
  for (const auto& [name, part] : description.tensors) {
    const auto [it, is_new] = manifest->tensors.emplace(name, part);
    if (is_new) continue;
    ManifestTensor& whole = it->second;
    if (whole.dtype != part.dtype || whole.shape != part.shape || whole.stored_shape != part.stored_shape ||
        whole.merged_dims != part.merged_dims) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": tensor \"", name, "\" is ", part.dtype,
                                                     ShapeText(part.shape), " but ", whole.dtype,
                                                     ShapeText(whole.shape), " in an earlier rank's shard"));
    }
    whole.slices.insert(whole.slices.end(), part.slices.begin(), part.slices.end());
  }
  return absl::OkStatus();
}

absl::Status WriteManifest(const std::string& directory, Manifest* manifest, int world) {
  for (int rank = 0; rank < world; ++rank) {
    const std::string path = absl::StrCat(directory, "/", DescriptionName(rank));
    absl::StatusOr<std::string> text = ReadSmallFile(path, kMaxDescriptionBytes);
    if (absl::IsNotFound(text.status())) {
      return absl::FailedPreconditionError(absl::StrCat(path, ": missing; rank ", rank,
                                                        " has not written its shard, or ", directory,
                                                        " is not on a file system that all workers share"));
    }
    if (!text.ok()) return text.status();
    absl::StatusOr<Manifest> description = ManifestFromJson(*text, path, ManifestSlices::kPart);
    if (!description.ok()) return description.status();
    if (absl::Status status = Merge(*description, path, manifest); !status.ok()) return status;
  }
  const std::string manifest_path = absl::StrCat(directory, "/", kManifestFileName);
  if (absl::Status status = CheckManifest(*manifest, manifest_path, ManifestSlices::kComplete); !status.ok())
    return status;
  // Only files that the manifest lists stay: the descriptions have served, and a run with more ranks may have been
  // killed here.
  std::set<std::string> listed;
  for (const ManifestFile& file : manifest->files) listed.insert(file.name);
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(directory);
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (listed.count(name) != 0) continue;
    if (absl::Status status = RemoveTree(absl::StrCat(directory, "/", name)); !status.ok()) return status;
  }
  if (absl::Status status = WriteSmallFile(manifest_path, ManifestToJson(*manifest)); !status.ok()) return status;
  return SyncDirectory(directory);
}

// Renames a checkpoint that is complete. The same one in its place is of a try that failed only afterwards, when the
// rename was to be forced to the disk: it stays.
absl::Status Rename(const std::string& directory, const std::string& target, const Manifest& manifest) {
  if (rename(directory.c_str(), target.c_str()) == 0) return absl::OkStatus();
  if (errno != ENOTEMPTY && errno != EEXIST) {
    return ErrnoStatus(errno, absl::StrCat(directory, ": cannot be renamed to ", target));
  }
  const std::string expected = ManifestToJson(manifest);
  const auto found = ReadSmallFile(absl::StrCat(target, "/", kManifestFileName), static_cast<int64_t>(expected.size()));
  if (absl::IsUnavailable(found.status())) return found.status();
  if (!found.ok() || *found != expected) {
    return absl::AlreadyExistsError(absl::StrCat(target, ": exists already; a checkpoint is never overwritten"));
  }
  return RemoveTree(directory);
}

}  // namespace

absl::Status CheckClaimed(const std::string& checkpoint_dir) {
  const std::string path = absl::StrCat(checkpoint_dir, "/", kOwnerFileName);
  struct stat info;
  if (stat(path.c_str(), &info) == 0) return absl::OkStatus();
  const absl::Status status = ErrnoStatus(errno, path);
  if (!absl::IsNotFound(status)) return status;
  return absl::NotFoundError(
      absl::StrCat(status.message(),
                   ": the file system of checkpoint.dir is not mounted any more, or the file was removed, so "
                   "nothing is written there; mount it again, or put the file back"));
}

absl::Status WriteShard(const std::string& checkpoint_dir, const CheckpointId& id, int rank,
                        const std::vector<ShardTensor>& tensors, Failpoints* failpoints) {
  const std::string directory = absl::StrCat(checkpoint_dir, "/", TemporaryCheckpointName(id));
  absl::Status status = Hit(failpoints, "before_shard_write");
  if (!status.ok()) return status;
  if (status = MakeDirectory(directory); !status.ok()) return status;
  status = WriteShardFiles(directory, id, rank, tensors, failpoints);
  if (!status.ok()) {
    // The first error is the one to report.
    (void)RemoveTree(absl::StrCat(directory, "/", ShardName(rank)));
    (void)RemoveTree(absl::StrCat(directory, "/", DescriptionName(rank)));
  }
  return status;
}

absl::StatusOr<CommittedCheckpoint> CommitCheckpoint(const std::string& checkpoint_dir, Manifest manifest, int world,
                                                     Failpoints* failpoints) {
  const CheckpointId id{manifest.step, manifest.attempt};
  const std::string directory = absl::StrCat(checkpoint_dir, "/", TemporaryCheckpointName(id));
  const std::string target = absl::StrCat(checkpoint_dir, "/", CheckpointName(id));
  manifest.files.clear();
  manifest.tensors.clear();
  const auto commit = [&]() -> absl::Status {
    if (absl::Status status = Hit(failpoints, "before_manifest"); !status.ok()) return status;
    if (absl::Status status = WriteManifest(directory, &manifest, world); !status.ok()) return status;
    if (absl::Status status = Hit(failpoints, "after_manifest"); !status.ok()) return status;
    if (absl::Status status = Hit(failpoints, "before_rename"); !status.ok()) return status;
    return Rename(directory, target, manifest);
  };
  if (absl::Status status = commit(); !status.ok()) {
    (void)AbandonCheckpoint(checkpoint_dir, id);
    return status;
  }
  if (const int error = failpoints == nullptr ? 0 : failpoints->Errno("after_rename"); error != 0) {
    return ErrnoStatus(error, absl::StrCat(checkpoint_dir, ": cannot be forced to the disk"));
  }
  if (absl::Status status = SyncDirectory(checkpoint_dir); !status.ok()) return status;
  CommittedCheckpoint committed{CheckpointName(id), 0};
  for (const ManifestFile& file : manifest.files) committed.num_bytes += file.num_bytes;
  return committed;
}

absl::Status AbandonCheckpoint(const std::string& checkpoint_dir, const CheckpointId& id) {
  return RemoveTree(absl::StrCat(checkpoint_dir, "/", TemporaryCheckpointName(id)));
}

absl::Status RemoveUnfinishedCheckpoints(const std::string& checkpoint_dir, int64_t attempt) {
  absl::StatusOr<std::vector<std::string>> names = ListDirectory(checkpoint_dir);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!absl::StartsWith(name, ".tmp-")) continue;
    const absl::optional<CheckpointId> id = ParseCheckpointName(name.substr(5));
    if (!id.has_value() || id->attempt > attempt) continue;
    if (absl::Status status = RemoveTree(absl::StrCat(checkpoint_dir, "/", name)); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace tacc::worker
