#include "worker/checkpoint/reader.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/files/posix_file.h"

namespace tacc::worker {
namespace {

constexpr int64_t kMaxManifestBytes = int64_t{1} << 30;

absl::Status CheckFile(const SafetensorsFile& file, const ManifestFile& listed) {
  if (file.num_bytes() != listed.num_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", file.num_bytes(), " bytes but the manifest says ",
                                                   listed.num_bytes, "; the file is damaged"));
  }
  return absl::OkStatus();
}

absl::Status CheckSlice(const SafetensorsFile& file, const std::string& name, const ManifestTensor& tensor,
                        const ManifestSlice& slice) {
  const auto it = file.header().tensors.find(name);
  if (it == file.header().tensors.end()) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor \"", name, "\" is missing"));
  }
  if (it->second.dtype != tensor.dtype || it->second.shape != slice.rectangle.shape) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor \"", name, "\" is ", it->second.dtype,
                                                   ShapeText(it->second.shape), " but the manifest says ", tensor.dtype,
                                                   ShapeText(slice.rectangle.shape)));
  }
  return absl::OkStatus();
}

// NotFound when the checkpoint's directory is not there.
absl::Status CheckIsThere(const std::string& path) {
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::directory) return absl::OkStatus();
  if (error && error != std::errc::no_such_file_or_directory) return ErrnoStatus(error.value(), path);
  return absl::NotFoundError(absl::StrCat(path, ": no such checkpoint"));
}

// A folder that has been given another kind of name says nothing about its content.
absl::Status CheckName(const std::string& path, const Manifest& manifest) {
  const absl::optional<CheckpointId> id = ParseCheckpointName(std::filesystem::path(path).filename().string());
  if (!id.has_value() || (id->step == manifest.step && id->attempt == manifest.attempt)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": its manifest is of step ", manifest.step, " and attempt ",
                                                 manifest.attempt,
                                                 "; the manifest is damaged or the folder was renamed"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  if (absl::Status status = CheckIsThere(path); !status.ok()) return status;
  const std::string manifest_path = absl::StrCat(path, "/", kManifestFileName);
  const absl::StatusOr<std::string> text = ReadSmallFile(manifest_path, kMaxManifestBytes);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(manifest_path, ": missing; the checkpoint is not complete"));
  }
  if (!text.ok()) return text.status();
  absl::StatusOr<Manifest> manifest = ManifestFromJson(*text, manifest_path, ManifestSlices::kComplete);
  if (!manifest.ok()) return manifest.status();
  if (absl::Status status = CheckName(path, *manifest); !status.ok()) return status;
  std::unique_ptr<Checkpoint> checkpoint(new Checkpoint(path, *std::move(manifest)));
  for (const ManifestFile& listed : checkpoint->manifest_.files) {
    const std::string file_path = absl::StrCat(path, "/", listed.name);
    absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(file_path);
    if (absl::IsNotFound(file.status())) {
      return absl::NotFoundError(absl::StrCat(file_path, ": missing; the checkpoint is not complete"));
    }
    if (!file.ok()) return file.status();
    if (absl::Status status = CheckFile(**file, listed); !status.ok()) return status;
    checkpoint->files_[listed.name] = *std::move(file);
  }
  for (const auto& [name, tensor] : checkpoint->manifest_.tensors) {
    for (const ManifestSlice& slice : tensor.slices) {
      absl::Status status = CheckSlice(*checkpoint->files_.at(slice.file), name, tensor, slice);
      if (!status.ok()) return status;
    }
  }
  return checkpoint;
}

absl::Status Checkpoint::VerifyData(size_t first, size_t stride, const std::function<void()>& progress) const {
  for (size_t i = first; i < manifest_.files.size(); i += stride) {
    const ManifestFile& listed = manifest_.files[i];
    const std::string file_path = absl::StrCat(path_, "/", listed.name);
    const absl::StatusOr<FileHash> hash = HashFile(file_path, progress);
    if (!hash.ok()) return hash.status();
    if (hash->num_bytes != listed.num_bytes || hash->sha256 != listed.sha256) {
      return absl::InvalidArgumentError(absl::StrCat(file_path, ": SHA-256 ", hash->sha256, " but the manifest says ",
                                                     listed.sha256, "; the file is damaged"));
    }
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::Read(const std::string& name, const Rectangle& rectangle, void* out) const {
  const auto it = manifest_.tensors.find(name);
  if (it == manifest_.tensors.end()) return absl::NotFoundError(absl::StrCat(path_, ": no tensor \"", name, "\""));
  const ManifestTensor& tensor = it->second;
  if (const std::vector<int64_t> sliced = tensor.SlicedShape(); !IsInside(rectangle, sliced)) {
    return absl::InvalidArgumentError(absl::StrCat(path_, ": tensor \"", name, "\": ", RectangleText(rectangle),
                                                   " is not inside ", ShapeText(sliced)));
  }
  // The manifest is checked: the slices are disjoint and hold everything, so the copies fill the rectangle exactly.
  const int64_t element_bytes = *DtypeBytes(tensor.dtype);
  for (const ManifestSlice& slice : tensor.slices) {
    const SafetensorsFile& file = *files_.at(slice.file);
    absl::Status status = file.Read(file.header().tensors.at(name).begin, slice.rectangle, rectangle, element_bytes,
                                    static_cast<char*>(out));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& checkpoint_dir) {
  const absl::StatusOr<std::vector<std::string>> names = ListDirectory(checkpoint_dir);
  if (!names.ok()) return names.status();
  std::vector<CheckpointEntry> entries;
  for (const std::string& name : *names) {
    const absl::optional<CheckpointId> id = ParseCheckpointName(name);
    if (!id.has_value()) continue;
    const std::string path = absl::StrCat(checkpoint_dir, "/", name);
    entries.push_back({*id, name, Checkpoint::Open(path).status()});
  }
  std::sort(entries.begin(), entries.end(), [](const CheckpointEntry& a, const CheckpointEntry& b) {
    return std::tie(a.id.step, a.id.attempt) > std::tie(b.id.step, b.id.attempt);
  });
  return entries;
}

}  // namespace tacc::worker
