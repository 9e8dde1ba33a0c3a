#include "kernels/cpu/aten.h"

namespace tacc::kernels::cpu {

int64_t AtenMatmulWorkspaceBytes(int64_t batch, int64_t m, int64_t n, int64_t k, DType dtype) {
  if (dtype != DType::kBF16) return 4096;
  return (1 << 20) + 2 * (m * k + k * n + m * n) * 2;
}

}  // namespace tacc::kernels::cpu
