// AdamW, the learning-rate schedule and random initial values.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "kernels/cpu/adamw.h"
#include "kernels/cpu/lr_schedule.h"
#include "kernels/cpu/random_init.h"
#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"

namespace tacc::kernels::cpu {
namespace {

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

Buffer Scalar(double value) { return Buffer(DType::kF32, Tensor(Dims{}, {value})); }

TEST(AdamW, FollowsTheReferenceOverSteps) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (DType g_type : {dtype, DType::kBF16}) {
      for (int64_t n : {1, 700, 20001}) {
        Tensor zeros({n});
        reference::AdamWState state{Rounded(Random({n}, 1), dtype), zeros, zeros};
        const Buffer w(dtype, state.w), m(dtype, zeros), v(dtype, zeros), copy(DType::kBF16, Dims{n});
        const Buffer lr = Scalar(3e-3), scale = Scalar(0.5), apply = Scalar(1);
        for (int step = 1; step <= 5; ++step) {
          const Tensor g = Rounded(Random({n}, 10 + step), g_type);
          state = reference::AdamW(state, g, lr.ToTensor()[0], 0.5, step, 0.9, 0.95, 1e-8, 0.1);
          const Buffer gradient(g_type, g), count = Scalar(step);
          AdamW(w, m, v, gradient, {lr, scale, apply, count}, {0.9, 0.95, 1e-8, 0.1}, w, m, v, copy);
        }
        const double tolerance = dtype == DType::kF64 ? 1e-10 : 3e-6;
        EXPECT_LE(MaxError(w.ToTensor(), state.w, 1e-1), tolerance);
        EXPECT_LE(MaxError(m.ToTensor(), state.m, 1e-1), tolerance);
        EXPECT_LE(MaxError(v.ToTensor(), state.v, 1e-1), tolerance);
        EXPECT_EQ(copy.ToTensor().values, Rounded(Rounded(w.ToTensor(), DType::kF32), DType::kBF16).values);
        EXPECT_TRUE(w.GuardsIntact() && m.GuardsIntact() && v.GuardsIntact() && copy.GuardsIntact());
      }
    }
  }
}

TEST(AdamW, SkippedUpdateKeepsEveryBit) {
  const Tensor w = Random({1000}, 1), m = Random({1000}, 2), v = Random({1000}, 3);
  Tensor g(w.dims);
  for (double& value : g.values) value = std::nan("");
  const Buffer bw(DType::kF32, w), bm(DType::kF32, m), bv(DType::kF32, v), bg(DType::kF32, g);
  const Buffer w2(DType::kF32, w.dims), m2(DType::kF32, w.dims), v2(DType::kF32, w.dims), copy(DType::kBF16, w.dims);
  AdamW(bw, bm, bv, bg, {Scalar(1), Scalar(std::nan("")), Scalar(0), Scalar(1)}, {}, w2, m2, v2, copy);
  EXPECT_EQ(0, std::memcmp(bw.view().data, w2.view().data, 4000));
  EXPECT_EQ(0, std::memcmp(bm.view().data, m2.view().data, 4000));
  EXPECT_EQ(0, std::memcmp(bv.view().data, v2.view().data, 4000));
  EXPECT_EQ(copy.ToTensor().values, Rounded(bw.ToTensor(), DType::kBF16).values);
}

TEST(LrSchedule, WarmsUpAndDecays) {
  const LrSchedule cosine{LrScheduleType::kCosine, 1e-3, 10, 110, 0};
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 0), 0);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 5), 5e-4);
  EXPECT_DOUBLE_EQ(LearningRate(cosine, 10), 1e-3);
  EXPECT_NEAR(LearningRate(cosine, 60), 5e-4, 1e-12);
  EXPECT_NEAR(LearningRate(cosine, 110), 0, 1e-12);
  EXPECT_NEAR(LearningRate(cosine, 500), 0, 1e-12);
  const LrSchedule linear{LrScheduleType::kLinear, 1e-3, 0, 100, 0.1};
  EXPECT_DOUBLE_EQ(LearningRate(linear, 0), 1e-3);
  EXPECT_NEAR(LearningRate(linear, 50), 5.5e-4, 1e-12);
  EXPECT_NEAR(LearningRate(linear, 100), 1e-4, 1e-12);
  const LrSchedule constant{LrScheduleType::kConstant, 1e-3, 4, 100, 0};
  EXPECT_DOUBLE_EQ(LearningRate(constant, 2), 5e-4);
  EXPECT_DOUBLE_EQ(LearningRate(constant, 1000), 1e-3);
}

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
