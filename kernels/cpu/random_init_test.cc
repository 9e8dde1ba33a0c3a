#include "kernels/cpu/random_init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/reference/buffer.h"

namespace tacc::kernels::cpu {
namespace {

using reference::Buffer;
using reference::Tensor;

TEST(RandomInit, IsTheSameInAnyLayout) {
  const Dims logical{7, 50, 13};
  const RandomKey key{42, HashName("layers.0.weight")};
  const Buffer whole(DType::kF32, logical);
  RandomInit(Distribution::kNormal, 0, 0.02, key, {logical, {0, 0, 0}, logical}, whole);
  const Tensor all = whole.ToTensor();
  // A rectangle in a padded shard: what exists equals the whole's part, padding is zero.
  const Buffer part(DType::kF32, Dims{4, 20, 13});
  RandomInit(Distribution::kNormal, 0, 0.02, key, {logical, {4, 30, 0}, {3, 20, 13}}, part);
  const Tensor got = part.ToTensor();
  for (int64_t i = 0; i < 4; ++i) {
    for (int64_t j = 0; j < 20; ++j) {
      for (int64_t k = 0; k < 13; ++k) {
        EXPECT_EQ(got[(i * 20 + j) * 13 + k], i < 3 ? all[((i + 4) * 50 + j + 30) * 13 + k] : 0);
      }
    }
  }
  const Buffer other(DType::kF32, logical);
  RandomInit(Distribution::kNormal, 0, 0.02, {42, HashName("layers.1.weight")}, {logical, {0, 0, 0}, logical}, other);
  EXPECT_NE(other.ToTensor().values, all.values);
}

TEST(RandomInit, HasTheAskedDistribution) {
  const Dims dims{1000, 300};
  const Buffer y(DType::kF64, dims);
  RandomInit(Distribution::kNormal, 1, 2, {1, 2}, {dims, {0, 0}, dims}, y);
  double mean = 0, variance = 0, fourth = 0, within = 0;
  for (double v : y.ToTensor().values) mean += v / 3e5;
  for (double v : y.ToTensor().values) {
    variance += (v - mean) * (v - mean) / 3e5;
    fourth += std::pow(v - mean, 4) / 3e5;
    within += std::fabs(v - 1) < 2 ? 1 / 3e5 : 0;
  }
  EXPECT_NEAR(mean, 1, 0.02);
  EXPECT_NEAR(variance, 4, 0.05);
  EXPECT_NEAR(fourth / (variance * variance), 3, 0.1);
  EXPECT_NEAR(within, 0.6827, 0.005);
  RandomInit(Distribution::kUniform, -1, 3, {1, 2}, {dims, {0, 0}, dims}, y);
  mean = 0;
  for (double v : y.ToTensor().values) {
    mean += v / 3e5;
    EXPECT_TRUE(v >= -1 && v < 3);
  }
  EXPECT_NEAR(mean, 1, 0.02);
  const Buffer constant(DType::kBF16, Dims{3});
  RandomInit(Distribution::kConstant, 1, 0, {1, 2}, {{3}, {0}, {3}}, constant);
  EXPECT_EQ(constant.ToTensor().values, (std::vector<double>{1, 1, 1}));
}

TEST(RandomInit, TruncatedNormalKeepsItsShapeWithinTheBound) {
  const Dims dims = {200, 500};
  const Buffer y(DType::kF64, dims);
  RandomInit(Distribution::kTruncatedNormal, 0.5, 0.75, {1, 2}, {dims, {0, 0}, dims}, y);
  const Tensor values = y.ToTensor();
  double sum = 0, squares = 0, inside = 0, largest = 0;
  for (double v : values.values) {
    sum += v;
    squares += v * v;
    inside += std::abs(v) < 0.5;
    largest = std::max(largest, std::abs(v));
  }
  const double n = static_cast<double>(values.size());
  EXPECT_LE(largest, 0.75);
  EXPECT_GT(largest, 0.749);
  EXPECT_NEAR(sum / n, 0, 0.005);
  // At a = 1.5: variance 1 - 2 a phi(a) / (2 Phi(a) - 1) = 0.551524, share within one standard deviation 0.682689 /
  // 0.866386.
  EXPECT_NEAR(squares / n, 0.25 * 0.551524, 0.002);
  EXPECT_NEAR(inside / n, 0.787974, 0.006);
}

TEST(RandomInit, BitsAreFixedForAllMachines) {
  const Buffer y(DType::kF32, Dims{4});
  RandomInit(Distribution::kNormal, 0, 1, {42, HashName("w")}, {{4}, {0}, {4}}, y);
  uint32_t bits[4];
  std::memcpy(bits, y.view().data, 16);
  const std::vector<uint32_t> got(bits, bits + 4);
  // Checkpoint-free reproducibility: a change here changes every freshly started model.
  EXPECT_EQ(got, (std::vector<uint32_t>{1060660939, 1058678336, 3211577585, 1059954489}));
}

}  // namespace
}  // namespace tacc::kernels::cpu
