#include "worker/checkpoint/tensors/model_fingerprint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/files/sha256.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/tensors/rectangle.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;
// Of the digest, 64 bits tell models apart.
constexpr size_t kShownDigits = 16;

struct TensorInFile {
  const InputFile* file;
  SafetensorsEntry entry;
};

absl::Status HashTensor(const std::string& name, const TensorInFile& tensor, int64_t one_in, Sha256* sha256) {
  const std::string facts = absl::StrCat(name, " ", tensor.entry.dtype, ShapeText(tensor.entry.shape), "\n");
  sha256->Update(facts.data(), facts.size());
  std::vector<char> piece(kPieceBytes);
  for (int64_t at = tensor.entry.begin; at < tensor.entry.end; at += one_in * kPieceBytes) {
    const int64_t num_bytes = std::min(kPieceBytes, tensor.entry.end - at);
    if (absl::Status status = tensor.file->Read(at, piece.data(), num_bytes); !status.ok()) return status;
    sha256->Update(piece.data(), num_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FingerprintOf(const std::vector<std::string>& paths, int64_t budget_bytes) {
  std::vector<std::unique_ptr<InputFile>> files;
  std::map<std::string, TensorInFile> tensors;
  int64_t num_bytes = 0;
  for (const std::string& path : paths) {
    absl::StatusOr<std::unique_ptr<InputFile>> file = InputFile::Open(path);
    if (!file.ok()) return file.status();
    const absl::StatusOr<SafetensorsHeader> header = ReadSafetensorsHeader(**file);
    if (!header.ok()) return header.status();
    for (const auto& [name, entry] : header->tensors) {
      tensors.emplace(name, TensorInFile{file->get(), entry});
      num_bytes += entry.end - entry.begin;
    }
    files.push_back(*std::move(file));
  }
  const int64_t one_in = std::max<int64_t>(1, (num_bytes + budget_bytes - 1) / budget_bytes);
  Sha256 sha256;
  for (const auto& [name, tensor] : tensors) {
    if (absl::Status status = HashTensor(name, tensor, one_in, &sha256); !status.ok()) return status;
  }
  return absl::StrCat(tensors.size(), " tensors, ", num_bytes, " bytes, ", sha256.HexDigest().substr(0, kShownDigits));
}

}  // namespace

absl::StatusOr<std::string> ModelFingerprint(const std::string& directory, int64_t budget_bytes) {
  const absl::StatusOr<WeightFiles> files = FindWeightFiles(directory);
  if (!files.ok()) return files.status();
  return FingerprintOf(files->paths, budget_bytes);
}

absl::StatusOr<std::string> AdapterFingerprint(const std::string& directory, const std::string& base) {
  const std::string path = absl::StrCat(directory, "/", kAdapterFileName);
  const absl::StatusOr<std::unique_ptr<SafetensorsFile>> file = SafetensorsFile::Open(path);
  if (!file.ok()) return file.status();
  const std::map<std::string, std::string>& metadata = (*file)->header().metadata;
  if (const auto of = metadata.find(kAdapterBaseKey); of != metadata.end() && of->second != base) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the adapter was trained on a base model of ", of->second,
                                                   ", but model.path holds ", base, "; give the model that it is of"));
  }
  return FingerprintOf({path}, std::max<int64_t>((*file)->num_bytes(), 1));
}

}  // namespace tacc::worker
