// The weights of a Hugging Face model directory: model.safetensors, or the files named by model.safetensors.index.json.
#ifndef TACC_WORKER_CHECKPOINT_TENSORS_MODEL_WEIGHTS_H_
#define TACC_WORKER_CHECKPOINT_TENSORS_MODEL_WEIGHTS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/tensors/rectangle.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {

// A tensor with a '*' in its name is a stack: the model's files hold one tensor for each entry of its first dim, under
// the name with the entry's number in place of the '*' ("experts.*.up.weight" of shape [8,N,M]: "experts.0.up.weight"
// of [N,M] to "experts.7.up.weight").
bool IsStack(const std::string& name);
std::string StackEntryName(const std::string& name, int64_t entry);

// The files that hold a directory's weights.
struct WeightFiles {
  std::vector<std::string> paths;            // In order.
  std::map<std::string, std::string> index;  // Tensor -> name of its file, where there is an index.
};
// NotFound when the directory has neither file; InvalidArgument names a damaged index.
absl::StatusOr<WeightFiles> FindWeightFiles(const std::string& directory);

// Immutable, thread-safe.
class ModelWeights {
 public:
  struct Tensor {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
  };

  // NotFound when the directory has neither file; InvalidArgument names a damaged file, a file or tensor that the index
  // names but is not there, and a tensor that two files have.
  static absl::StatusOr<std::unique_ptr<ModelWeights>> Open(const std::string& directory);

  // All tensors by name; a directory in one file has exactly that file's.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  // Reads a rectangle of a tensor, or of some of its rows (tensor_rows.h), as fp32, dense and row-major.
  // `logical_shape` is how the caller sees it: the stored shape or a reshape of it (of a stack, that of an entry).
  // `out` holds the rectangle's elements. NotFound, InvalidArgument name the tensor.
  absl::Status ReadFloat(const std::string& name, const std::vector<int64_t>& logical_shape, const Rectangle& rectangle,
                         float* out) const;

 private:
  ModelWeights() = default;
  // Of one tensor, or some of its rows.
  absl::Status ReadPart(const std::string& name, const std::vector<int64_t>& logical_shape, const Rectangle& rectangle,
                        float* out) const;
  // A rectangle of `shape`, whose elements lie in the tensor one after the other from `first_element` on.
  absl::Status ReadElements(const Tensor& tensor, const std::string& where, int64_t first_element,
                            const std::vector<int64_t>& shape, const Rectangle& rectangle, float* out) const;

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TENSORS_MODEL_WEIGHTS_H_
