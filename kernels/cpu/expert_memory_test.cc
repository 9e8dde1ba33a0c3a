// Experts see another number of rows in each step: what the libraries keep of each number must not add up.
#include <unistd.h>

#include <fstream>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/contract/expert.h"
#include "kernels/cpu/kernels.h"

namespace tacc::kernels::cpu {
namespace {

int64_t ResidentBytes() {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

TEST(ExpertMatmul, EachNumberOfRowsIsNoMoreMemory) {
  constexpr int64_t kTokens = 512, kN = 192, kM = 256;
  std::vector<uint16_t> x(kTokens * kN), y(kTokens * kM), w(kM * kN);
  std::vector<float> dw(kM * kN);
  std::vector<int32_t> ids(kTokens);
  const auto run = [&](int64_t rows) {
    for (int64_t i = 0; i < kTokens; ++i) ids[i] = i < rows ? 0 : -1;
    const TensorView x_view{x.data(), DType::kBF16, {kTokens, 1, kN}}, y_view{y.data(), DType::kBF16, {kTokens, 1, kM}};
    const TensorView id_view{ids.data(), DType::kI32, {kTokens, 1}};
    kExpert.ExpertMatmul(x_view, id_view, {w.data(), DType::kBF16, {1, kM, kN}}, ExpertWeights::kPlain, 0, y_view);
    kExpert.ExpertMatmulGrad(y_view, x_view, id_view, 0, {dw.data(), DType::kF32, {1, kM, kN}});
  };
  for (int64_t rows = 32; rows <= kTokens; rows += 32) run(rows);
  const int64_t before = ResidentBytes();
  for (int64_t rows = 1; rows < kTokens; rows += 2) run(rows);
  EXPECT_LT(ResidentBytes() - before, 16 << 20);
}

}  // namespace
}  // namespace tacc::kernels::cpu
