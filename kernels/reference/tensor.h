// Tensor: values in double precision with dims, for the references.
#ifndef TACC_KERNELS_REFERENCE_TENSOR_H_
#define TACC_KERNELS_REFERENCE_TENSOR_H_

#include <vector>

#include "kernels/tensor.h"

namespace tacc::kernels::reference {

struct Tensor {
  Dims dims;
  std::vector<double> values;

  Tensor() = default;
  explicit Tensor(Dims d) : dims(d), values(d.Product(), 0.0) {}
  Tensor(Dims d, std::vector<double> v) : dims(d), values(std::move(v)) {}

  int64_t size() const { return static_cast<int64_t>(values.size()); }
  // Extent of the last dim, and the number of rows of that length.
  int64_t row_length() const { return dims.empty() ? 1 : dims.back(); }
  int64_t num_rows() const { return dims.empty() ? 1 : dims.Product(0, dims.rank() - 1); }
  double& operator[](int64_t i) { return values[i]; }
  double operator[](int64_t i) const { return values[i]; }
};

}  // namespace tacc::kernels::reference

#endif  // TACC_KERNELS_REFERENCE_TENSOR_H_
