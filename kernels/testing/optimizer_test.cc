// AdamW and the learning-rate schedule, of every device.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>

#include "kernels/reference/buffer.h"
#include "kernels/reference/reference.h"
#include "kernels/testing/kernels_under_test.h"

namespace tacc::kernels {
namespace {

const Kernels& tested = KernelsUnderTest();

using reference::Buffer;
using reference::MaxError;
using reference::Random;
using reference::Rounded;
using reference::Tensor;

Buffer Scalar(double value) { return Buffer(DType::kF32, Tensor(Dims{}, {value})); }

TEST(AdamW, FollowsTheReferenceOverSteps) {
  for (DType dtype : {DType::kF32, DType::kF64}) {
    for (DType g_type : {dtype, DType::kBF16}) {
      for (const auto& [n, placement] : {std::pair<int64_t, Buffer::Placement>{1, Buffer::Placement::kOffByOne},
                                         {700, Buffer::Placement::kOffByOne},
                                         {701, Buffer::Placement::kAligned},
                                         {20001, Buffer::Placement::kOffByOne},
                                         {20001, Buffer::Placement::kAligned}}) {
        Tensor zeros({n});
        reference::AdamWState state{Rounded(Random({n}, 1), dtype), zeros, zeros};
        const Buffer w(dtype, state.w, placement), m(dtype, zeros, placement), v(dtype, zeros, placement);
        const Buffer copy(DType::kBF16, Dims{n}, placement);
        const Buffer lr = Scalar(3e-3), scale = Scalar(0.5), apply = Scalar(1);
        for (int step = 1; step <= 5; ++step) {
          const Tensor g = Rounded(Random({n}, 10 + step), g_type);
          state = reference::AdamW(state, g, lr.ToTensor()[0], 0.5, step, 0.9, 0.95, 1e-8, 0.1);
          const Buffer gradient(g_type, g, placement), count = Scalar(step);
          tested.adamw.AdamW(w, m, v, gradient, {lr, scale, apply, count}, {0.9, 0.95, 1e-8, 0.1}, w, m, v, copy);
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
  tested.adamw.AdamW(bw, bm, bv, bg, {Scalar(1), Scalar(std::nan("")), Scalar(0), Scalar(1)}, {}, w2, m2, v2, copy);
  EXPECT_EQ(0, std::memcmp(bw.view().data, w2.view().data, 4000));
  EXPECT_EQ(0, std::memcmp(bm.view().data, m2.view().data, 4000));
  EXPECT_EQ(0, std::memcmp(bv.view().data, v2.view().data, 4000));
  EXPECT_EQ(copy.ToTensor().values, Rounded(bw.ToTensor(), DType::kBF16).values);
}

double RateAfter(const LrSchedule& schedule, int64_t step) {
  const Buffer rate(DType::kF64, Dims{});
  tested.lr_schedule.LearningRate(schedule, {&step, DType::kI64, {}}, rate);
  return rate.ToTensor()[0];
}

TEST(LrSchedule, WarmsUpAndDecays) {
  const LrSchedule cosine{LrScheduleType::kCosine, 1e-3, 10, 110, 0};
  EXPECT_DOUBLE_EQ(RateAfter(cosine, 0), 0);
  EXPECT_DOUBLE_EQ(RateAfter(cosine, 5), 5e-4);
  EXPECT_DOUBLE_EQ(RateAfter(cosine, 10), 1e-3);
  EXPECT_NEAR(RateAfter(cosine, 60), 5e-4, 1e-12);
  EXPECT_NEAR(RateAfter(cosine, 110), 0, 1e-12);
  EXPECT_NEAR(RateAfter(cosine, 500), 0, 1e-12);
  const LrSchedule linear{LrScheduleType::kLinear, 1e-3, 0, 100, 0.1};
  EXPECT_DOUBLE_EQ(RateAfter(linear, 0), 1e-3);
  EXPECT_NEAR(RateAfter(linear, 50), 5.5e-4, 1e-12);
  EXPECT_NEAR(RateAfter(linear, 100), 1e-4, 1e-12);
  const LrSchedule constant{LrScheduleType::kConstant, 1e-3, 4, 100, 0};
  EXPECT_DOUBLE_EQ(RateAfter(constant, 2), 5e-4);
  EXPECT_DOUBLE_EQ(RateAfter(constant, 1000), 1e-3);
}

}  // namespace
}  // namespace tacc::kernels
