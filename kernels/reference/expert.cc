#include "kernels/reference/expert.h"

#include <cmath>

namespace tacc::kernels::reference {

Tensor Softmax(const Tensor& x) {
  const int64_t n = x.row_length();
  Tensor y(x.dims);
  for (int64_t i = 0; i < x.num_rows(); ++i) {
    double sum = 0;
    for (int64_t j = 0; j < n; ++j) sum += std::exp(x[i * n + j]);
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = std::exp(x[i * n + j]) / sum;
  }
  return y;
}

Tensor SoftmaxGrad(const Tensor& dy, const Tensor& x) {
  const int64_t n = x.row_length();
  const Tensor y = Softmax(x);
  Tensor dx(x.dims);
  for (int64_t i = 0; i < x.num_rows(); ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t k = 0; k < n; ++k)  // dy_k/dx_j = y_k (1 - y_j) if k = j, else -y_k y_j
        dx[i * n + j] += dy[i * n + k] * y[i * n + k] * ((k == j ? 1 : 0) - y[i * n + j]);
    }
  }
  return dx;
}

Tensor ExpertProducts(const Tensor& x, const std::vector<int32_t>& ids, const Tensor& w) {
  const int64_t tokens = x.dims[0], n = x.dims[1], experts = w.dims[0], m = w.dims[1];
  const int64_t slots = static_cast<int64_t>(ids.size()) / tokens;
  Tensor y(Dims{tokens, slots, m});
  for (int64_t s = 0; s < tokens * slots; ++s) {
    if (ids[s] < 0 || ids[s] >= experts) continue;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) y[s * m + i] += w[(ids[s] * m + i) * n + j] * x[s / slots * n + j];
    }
  }
  return y;
}

Tensor SumSlots(const Tensor& y) {
  const int64_t tokens = y.dims[0], slots = y.dims[1], m = y.dims[2];
  Tensor sum(Dims{tokens, m});
  for (int64_t s = 0; s < tokens * slots; ++s) {
    for (int64_t i = 0; i < m; ++i) sum[s / slots * m + i] += y[s * m + i];
  }
  return sum;
}

Tensor ExpertOuterProducts(const Tensor& a, const Tensor& b, const std::vector<int32_t>& ids, int64_t num_experts) {
  const int64_t slots = a.dims[1], m = a.dims[2], n = b.dims[1];
  Tensor dw(Dims{num_experts, m, n});
  for (int64_t s = 0; s < static_cast<int64_t>(ids.size()); ++s) {
    if (ids[s] < 0 || ids[s] >= num_experts) continue;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) dw[(ids[s] * m + i) * n + j] += a[s * m + i] * b[s / slots * n + j];
    }
  }
  return dw;
}

}  // namespace tacc::kernels::reference
