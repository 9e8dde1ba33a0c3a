// How fast this machine multiplies, as a training step's layers do.
#ifndef TACC_WORKER_RANK_TORCH_MATMUL_RATE_H_
#define TACC_WORKER_RANK_TORCH_MATMUL_RATE_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace tacc::worker {

// Of a linear layer: x[rows,inputs] times the transpose of w[outputs,inputs].
struct LayerShape {
  int64_t rows = 0, inputs = 0, outputs = 0;
};

// Of products, in floating-point operations per second.
struct MatmulRate {
  double best = 0;       // of a single one: the peak
  double sustained = 0;  // of all kinds in turn, each at the time that half of its repeats stay under
};

// Measures the products of a training step: each layer's output, and the gradients of its input and of its weight,
// which lie otherwise in memory. `time` runs a product and returns the seconds of each of its repeats; none, for any
// but the first: there is no time left for it nor for what follows. Operands are random numbers: some devices multiply
// others faster.
MatmulRate MeasureMatmul(const at::TensorOptions& options, const std::vector<LayerShape>& layers,
                         const std::function<std::vector<double>(const std::function<void()>& product)>& time);

}  // namespace tacc::worker

#endif  // TACC_WORKER_RANK_TORCH_MATMUL_RATE_H_
