// The tensors of an exported folder, and where their elements come from.
#ifndef TACC_WORKER_CHECKPOINT_EXPORT_TENSORS_H_
#define TACC_WORKER_CHECKPOINT_EXPORT_TENSORS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/checkpoint/reader.h"
#include "worker/checkpoint/tensors/model_weights.h"
#include "worker/checkpoint/tensors/safetensors.h"

namespace tacc::worker {

// Some elements of a tensor in row-major order, in rows.
struct TensorSource {
  int64_t num_rows = 1;
  int64_t row_elements = 1;
  // Reads rows as fp32.
  std::function<absl::Status(int64_t first_row, int64_t num_rows, float* out)> read;
};

struct ExportTensor {
  SafetensorsWriter::Tensor tensor;
  std::vector<TensorSource> sources;  // In the order of the elements.
  int64_t num_bytes = 0;
};

// The weights of a checkpoint as the tensors of the model's files that they are: rows of one are joined, stacks taken
// apart. In order of their names. The checkpoint must outlive them. InvalidArgument: it holds none, or rows are
// missing.
absl::StatusOr<std::vector<ExportTensor>> TensorsOfCheckpoint(const Checkpoint& checkpoint, const std::string& dtype);

// The same of weights of the model's files, by the names that programs have for them; they must outlive the result.
// NotFound: there is none of a name.
absl::StatusOr<std::vector<ExportTensor>> TensorsOfModel(const ModelWeights& model,
                                                         const std::vector<std::string>& names,
                                                         const std::string& dtype);

// Whether a tensor of a checkpoint is a matrix of an adapter.
bool IsOfAdapter(const std::string& name);

// Adds to each tensor MODULE.weight the product s B A of its adapter; `adapters` are the MODULE.lora_A.weight and
// MODULE.lora_B.weight, of which a module's path may have more leading components than the tensor's name.
// InvalidArgument: there is no such tensor, or another shape; the text of adapter_config.json does not say s.
absl::Status MergeAdapters(const std::string& adapter_config, const std::vector<ExportTensor>& adapters,
                           std::vector<ExportTensor>* tensors);

// Appends the elements of the tensor to the file, in its dtype.
absl::Status AppendTensor(const ExportTensor& tensor, SafetensorsWriter* writer);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_EXPORT_TENSORS_H_
