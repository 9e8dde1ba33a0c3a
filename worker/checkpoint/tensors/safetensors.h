// The safetensors file format: 8 bytes little-endian header length, a JSON header {"name": {"dtype", "shape",
// "data_offsets"}}, then the tensors' bytes, dense, row-major, without gaps.
// Source: https://github.com/huggingface/safetensors, section "Format".
#ifndef TACC_WORKER_CHECKPOINT_TENSORS_SAFETENSORS_H_
#define TACC_WORKER_CHECKPOINT_TENSORS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/files/posix_file.h"
#include "worker/checkpoint/tensors/rectangle.h"

namespace tacc::worker {

// Returns bytes per element of a safetensors dtype ("F32", "BF16", ...); InvalidArgument for an unknown one.
absl::StatusOr<int64_t> DtypeBytes(const std::string& dtype);

struct SafetensorsEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // Position of the first byte in the file.
  int64_t end = 0;    // One past the last.
};

struct SafetensorsHeader {
  std::map<std::string, SafetensorsEntry> tensors;
  std::map<std::string, std::string> metadata;
};

// Parses and checks a file's content: header length within 100 MB and the file, JSON, known dtypes, sizes that match
// shape and dtype, tensors that lie in the file without overlap, gap or rest. `path` is for messages only.
// InvalidArgument names the file and, where one is concerned, the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensors(const char* data, int64_t num_bytes, const std::string& path);

// The same of a file of which nothing but the header is read.
absl::StatusOr<SafetensorsHeader> ReadSafetensorsHeader(const InputFile& file);

// A checked file, open. Immutable, thread-safe.
class SafetensorsFile {
 public:
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  const std::string& path() const { return file_->path(); }
  int64_t num_bytes() const { return file_->num_bytes(); }
  const SafetensorsHeader& header() const { return header_; }
  // Reads what `source`, whose elements begin at the file's byte `begin`, and `target` have in common to `out`, which
  // holds `target`: a call of the system for each run of bytes that lie together in both. InvalidArgument: the file has
  // been cut short since it was opened; says at which byte.
  absl::Status Read(int64_t begin, const Rectangle& source, const Rectangle& target, int64_t element_bytes,
                    char* out) const;

 private:
  SafetensorsFile(std::unique_ptr<InputFile> file, SafetensorsHeader header)
      : file_(std::move(file)), header_(std::move(header)) {}
  std::unique_ptr<InputFile> file_;
  SafetensorsHeader header_;
};

// Writes a file as a stream: the tensors are declared first and their bytes appended in the declared order.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
  };
  // Creates the file and writes the header. InvalidArgument for a name given twice, a name that is not UTF-8, an
  // unknown dtype or a negative extent.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(const std::string& path,
                                                                   const std::vector<Tensor>& tensors,
                                                                   const std::map<std::string, std::string>& metadata);
  // Appends the next bytes of the tensors' data.
  absl::Status Append(const void* data, int64_t num_bytes);
  // Forces the file to the disk. FailedPrecondition when fewer or more bytes were appended than declared.
  absl::StatusOr<FileHash> Finish();

 private:
  SafetensorsWriter(std::unique_ptr<OutputFile> file, int64_t data_bytes)
      : file_(std::move(file)), missing_bytes_(data_bytes) {}
  std::unique_ptr<OutputFile> file_;
  int64_t missing_bytes_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TENSORS_SAFETENSORS_H_
