#include "graph/planner/calibrate.h"

#include <gtest/gtest.h>

#include <string>

namespace tacc::graph {
namespace {

Setting Preset() { return {*FindMachine("a100"), {}}; }

// A step of products of 1e15 FLOPs of such a depth, and of kernels that move so many bytes.
MeasuredStep Step(double depth, double bytes, const Setting& truth) {
  MeasuredStep step;
  step.prediction = [=](const Setting& setting) {
    return KernelSeconds(setting.machine, DType::kBF16, 1e15, 0, {0, 0, depth}) +
           KernelSeconds(setting.machine, DType::kF32, 0, bytes);
  };
  step.seconds = step.prediction(truth);
  return step;
}

Setting Truth() {
  Setting truth = Preset();
  truth.machine.matmul_fraction *= 0.9;
  truth.machine.matmul_depth *= 1.5;
  truth.machine.bandwidth_fraction *= 0.95;
  return truth;
}

std::vector<MeasuredStep> Steps() {
  std::vector<MeasuredStep> steps;
  for (double depth : {64, 256, 1 << 20}) {
    for (double bytes : {0.0, 1e13, 1e14}) steps.push_back(Step(depth, bytes, Truth()));
  }
  return steps;
}

bool IsDetermined(const Calibration& c, const std::string& name) {
  for (size_t i = 0; i < c.constants.size(); ++i) {
    if (c.constants[i].name == name) return c.determined[i];
  }
  ADD_FAILURE() << name;
  return false;
}

TEST(Calibrate, FindsWhatTheStepsTellAndLeavesTheRest) {
  const Machine before = Preset().machine, truth = Truth().machine;
  const Calibration c = Calibrate(Preset(), Steps());
  const Machine& after = c.setting.machine;
  EXPECT_GT(c.error_before, 0.05);
  EXPECT_LT(c.error_after, 0.005);
  // Within a percent or two: each is still drawn to where it began.
  EXPECT_NEAR(after.matmul_fraction, truth.matmul_fraction, 0.01);
  EXPECT_NEAR(after.matmul_depth, truth.matmul_depth, 0.02 * truth.matmul_depth);
  EXPECT_NEAR(after.bandwidth_fraction, truth.bandwidth_fraction, 0.02);
  for (const char* name : {"matmul_fraction", "matmul_depth", "bandwidth_fraction"})
    EXPECT_TRUE(IsDetermined(c, name)) << name;
  for (const char* name : {"attention_fraction", "issue_seconds", "inter_latency_seconds", "inter_bytes_per_second"})
    EXPECT_FALSE(IsDetermined(c, name)) << name;
  EXPECT_EQ(after.attention_fraction, before.attention_fraction);
  EXPECT_EQ(after.inter_bytes_per_second, before.inter_bytes_per_second);
}

TEST(Calibrate, OneStepThatWasDisturbedMovesLittle) {
  std::vector<MeasuredStep> steps = Steps();
  steps[0].seconds *= 2;
  const Calibration c = Calibrate(Preset(), steps);
  EXPECT_NEAR(c.setting.machine.matmul_fraction, Truth().machine.matmul_fraction, 0.02);
}

TEST(Calibrate, WithoutStepsNothingIsKnown) {
  const Calibration c = Calibrate(Preset(), {});
  for (bool determined : c.determined) EXPECT_FALSE(determined);
  EXPECT_EQ(c.setting.machine.matmul_fraction, Preset().machine.matmul_fraction);
  EXPECT_EQ(c.error_after, 0);
}

TEST(FitConstants, StaysWithinTheBoundsAndLeavesZeros) {
  Setting start = Preset();
  start.machine.matmul_depth = 0;
  std::vector<MeasuredStep> steps = {Step(1024, 0, start)};
  steps[0].seconds *= 0.01;  // beyond the peak
  const Fit fit = FitConstants(start, UnlistedConstants(), steps);
  EXPECT_LE(fit.setting.machine.matmul_fraction, 1);
  EXPECT_EQ(fit.setting.machine.matmul_depth, 0);
}

// Each micro-batch of a step waits so long.
TEST(FitConstants, FindsWhatAForeignHostTakes) {
  Setting start = Preset();
  start.execution.micro_batch_seconds = 1e-3;
  std::vector<MeasuredStep> steps;
  for (int64_t accumulation : {1, 4, 16}) {
    ModelWork model;
    model.units.resize(1);
    KernelWork product;
    product.dtype = DType::kBF16;
    product.flops = 1e12;
    model.units[0].forward.kernels = {product};
    Layout layout;
    layout.accumulation = accumulation;
    Setting truth = start;
    truth.execution.micro_batch_seconds = 3e-3;
    const auto predict = [=](const Setting& setting) {
      return EstimateStep(model, {setting.machine, 1}, layout, setting.execution).seconds;
    };
    steps.push_back({predict(truth), predict});
  }
  std::vector<FreeConstant> constants = {HostConstant()};
  const Fit fit = FitConstants(start, constants, steps);
  EXPECT_NEAR(fit.setting.execution.micro_batch_seconds, 3e-3, 1e-4);
  EXPECT_LT(fit.spreads[0], 0.5);
}

}  // namespace
}  // namespace tacc::graph
