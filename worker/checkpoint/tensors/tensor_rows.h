// Weights that lie one after the other along the first dim of one tensor of a model's files, as the q, k and v of a
// fused projection, are weights of their own in programs and checkpoints, named TENSOR[BEGIN:END]; those that lie so
// along the second dim, as the gates and values of fused experts, TENSOR[:,BEGIN:END].
#ifndef TACC_WORKER_CHECKPOINT_TENSORS_TENSOR_ROWS_H_
#define TACC_WORKER_CHECKPOINT_TENSORS_TENSOR_ROWS_H_

#include <cstdint>
#include <string>

#include "absl/types/optional.h"

namespace tacc::worker {

struct TensorRows {
  std::string tensor;
  int dim = 0;  // 0 or 1
  int64_t begin = 0;
  int64_t end = 0;
};

// Absent when the name is that of a whole tensor.
absl::optional<TensorRows> ParseTensorRows(const std::string& name);

}  // namespace tacc::worker

#endif  // TACC_WORKER_CHECKPOINT_TENSORS_TENSOR_ROWS_H_
