// Updates of weights and the learning-rate schedule, of every device.
#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

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

struct UpdateCase {
  const char* name;
  UpdateParameters parameters;
  bool has_m, has_v;
};

std::vector<UpdateCase> UpdateCases() {
  using Kind = UpdateKind;
  return {{"adamw", {Kind::kAdamW, 0.9, 0.95, 1e-8, 0.1}, true, true},
          {"adam", {Kind::kAdam, 0.9, 0.95, 1e-8, 0.1}, true, true},
          {"sgd", {.kind = Kind::kSgd, .weight_decay = 0.1}, false, false},
          {"momentum", {.kind = Kind::kSgd, .weight_decay = 0.1, .momentum = 0.9, .dampening = 0.3}, true, false},
          {"nesterov", {.kind = Kind::kSgd, .weight_decay = 0.1, .momentum = 0.9, .nesterov = true}, true, false},
          {"lion", {Kind::kLion, 0.5, 0.75, 0, 0.1}, true, false},
          {"average", {.kind = Kind::kMovingAverage}, false, false}};
}

TEST(Update, FollowsTheReferenceOverSteps) {
  for (const UpdateCase& update : UpdateCases()) {
    for (DType dtype : {DType::kF32, DType::kF64}) {
      for (DType g_type : {dtype, DType::kBF16}) {
        for (const auto& [n, placement] : {std::pair<int64_t, Buffer::Placement>{1, Buffer::Placement::kOffByOne},
                                           {700, Buffer::Placement::kOffByOne},
                                           {701, Buffer::Placement::kAligned},
                                           {20001, Buffer::Placement::kOffByOne},
                                           {20001, Buffer::Placement::kAligned}}) {
          SCOPED_TRACE(std::string(update.name) + " of " + std::to_string(n));
          Tensor zeros({n});
          reference::WeightState state{Rounded(Random({n}, 1), dtype), zeros, zeros};
          const Buffer w(dtype, state.w, placement), m(dtype, zeros, placement), v(dtype, zeros, placement);
          const Buffer copy(DType::kBF16, Dims{n}, placement);
          const TensorView own_m = update.has_m ? m.view() : TensorView();
          const TensorView own_v = update.has_v ? v.view() : TensorView();
          const Buffer lr = Scalar(3e-3), scale = Scalar(0.5), apply = Scalar(1);
          for (int step = 1; step <= 5; ++step) {
            Tensor g = Rounded(Random({n}, 10 + step), g_type);
            // Means of these are exact, so that no rounding decides a sign.
            for (double& x : g.values) x = update.parameters.kind == UpdateKind::kLion ? std::round(x * 64) / 64 : x;
            state = reference::Update(state, g, lr.ToTensor()[0], 0.5, step, update.parameters);
            const Buffer gradient(g_type, g, placement), count = Scalar(step);
            tested.optimizer.Update(
                {w, own_m, own_v, gradient, {lr, scale, apply, count}, update.parameters, w, own_m, own_v, copy});
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
}

// A scalar in place of the parameter, at each step another one: to the bit what that parameter gives.
TEST(Update, TakesAMomentumThatMoves) {
  for (const UpdateCase& update : UpdateCases()) {
    if (!update.has_m) continue;
    SCOPED_TRACE(update.name);
    const Tensor start = Random({701}, 1), zeros({701});
    const Buffer w(DType::kF32, start), m(DType::kF32, zeros), v(DType::kF32, zeros);
    const Buffer w2(DType::kF32, start), m2(DType::kF32, zeros), v2(DType::kF32, zeros);
    const TensorView none;
    const Buffer lr = Scalar(3e-3), scale = Scalar(0.5), apply = Scalar(1);
    for (int step = 1; step <= 3; ++step) {
      const double now = 0.95 - 0.05 * step;
      const Buffer g(DType::kF32, Random({701}, 10 + step)), count = Scalar(step);
      const Buffer momentum(DType::kF64, Tensor(Dims{}, {now}));
      tested.optimizer.Update({w,
                               m,
                               update.has_v ? v.view() : none,
                               g,
                               {lr, scale, apply, count, momentum},
                               update.parameters,
                               w,
                               m,
                               update.has_v ? v.view() : none,
                               none});
      UpdateParameters parameters = update.parameters;
      parameters.beta1 = parameters.momentum = now;
      tested.optimizer.Update({w2,
                               m2,
                               update.has_v ? v2.view() : none,
                               g,
                               {lr, scale, apply, count},
                               parameters,
                               w2,
                               m2,
                               update.has_v ? v2.view() : none,
                               none});
    }
    EXPECT_EQ(w.ToTensor().values, w2.ToTensor().values);
    EXPECT_EQ(m.ToTensor().values, m2.ToTensor().values);
    EXPECT_EQ(v.ToTensor().values, v2.ToTensor().values);
    EXPECT_NE(w.ToTensor().values, start.values);
  }
}

TEST(Update, OfLionKeepsNan) {
  const Buffer w(DType::kF32, Tensor({1}, {1.0})), m(DType::kF32, Tensor({1}, {0.0}));
  const Buffer g(DType::kF32, Tensor({1}, {std::nan("")}));
  tested.optimizer.Update(
      {w, m, {}, g, {Scalar(1), Scalar(1), Scalar(1), Scalar(1)}, {.kind = UpdateKind::kLion}, w, m, {}, {}});
  EXPECT_TRUE(std::isnan(w.ToTensor()[0]));
}

TEST(Update, SkippedKeepsEveryBit) {
  const Tensor w = Random({1000}, 1), m = Random({1000}, 2), v = Random({1000}, 3);
  Tensor g(w.dims);
  for (double& value : g.values) value = std::nan("");
  const Buffer bw(DType::kF32, w), bm(DType::kF32, m), bv(DType::kF32, v), bg(DType::kF32, g);
  for (const UpdateCase& update : UpdateCases()) {
    SCOPED_TRACE(update.name);
    const Buffer w2(DType::kF32, w.dims), m2(DType::kF32, w.dims), v2(DType::kF32, w.dims), copy(DType::kBF16, w.dims);
    const TensorView none;
    tested.optimizer.Update({bw,
                             update.has_m ? bm.view() : none,
                             update.has_v ? bv.view() : none,
                             bg,
                             {Scalar(1), Scalar(std::nan("")), Scalar(0), Scalar(1)},
                             update.parameters,
                             w2,
                             update.has_m ? m2.view() : none,
                             update.has_v ? v2.view() : none,
                             copy});
    EXPECT_EQ(0, std::memcmp(bw.view().data, w2.view().data, 4000));
    EXPECT_TRUE(!update.has_m || std::memcmp(bm.view().data, m2.view().data, 4000) == 0);
    EXPECT_TRUE(!update.has_v || std::memcmp(bv.view().data, v2.view().data, 4000) == 0);
    EXPECT_EQ(copy.ToTensor().values, Rounded(bw.ToTensor(), DType::kBF16).values);
  }
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
