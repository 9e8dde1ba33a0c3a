#include "graph/planner/finalists.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tacc::graph {
namespace {

// One layer of 1e9 parameters and 3e13 FLOPs a sample, 1e10 bytes of activations a sample.
ModelWork OneLayer() {
  UnitWork layer;
  layer.is_layer = true;
  KernelWork product;
  product.dtype = DType::kBF16;
  product.region = Split::kTensor;
  product.flops = 1e13;
  layer.forward.kernels = {product};
  layer.backward.kernels = {product, product};
  layer.parameters.tensor = 1e9;
  layer.saved_home_bytes = 1e10;
  ModelWork model;
  model.units = {layer};
  model.num_layers = 1;
  return model;
}

Plan PlanOf(int64_t dp, int64_t fsdp, int64_t micro_batch) {
  Plan plan;
  plan.mesh = {{{"dp", dp}, {"fsdp", fsdp}}};
  plan.compute_dtype = DType::kBF16;
  plan.micro_batch = micro_batch;
  plan.accumulation = 64 / (dp * fsdp * micro_batch);
  return plan;
}

TEST(Finalists, FewPlansAreAllCompiled) {
  const std::vector<Plan> plans = {PlanOf(8, 1, 8), PlanOf(1, 8, 1)};
  EXPECT_EQ(Finalists(OneLayer(), *MakeCluster(*FindMachine("h100"), 8), plans, 2), plans);
}

TEST(Finalists, KeepsWhatFitsAndTheSmallest) {
  // 80 GiB: 8 samples of 1e10 bytes beside 16e9 bytes of states do not fit; 1, 2 and 4 do.
  const std::vector<Plan> plans = {PlanOf(8, 1, 8), PlanOf(8, 1, 4), PlanOf(8, 1, 1), PlanOf(1, 8, 8), PlanOf(1, 8, 1)};
  const std::vector<Plan> two = Finalists(OneLayer(), *MakeCluster(*FindMachine("h100"), 8), plans, 3);
  EXPECT_THAT(two, testing::Not(testing::Contains(PlanOf(8, 1, 8))));
  EXPECT_THAT(two, testing::Contains(PlanOf(1, 8, 1)));
  EXPECT_EQ(two.size(), 3u);
}

TEST(Finalists, SplitTensorAxesAreOne) {
  Plan plan = PlanOf(2, 1, 1);
  plan.mesh.axes.push_back({"tp", 2});
  plan.mesh.axes.push_back({"tpq", 4});
  EXPECT_EQ(LayoutOfPlan(plan).tp, 8);
}

TEST(Finalists, TheMeshSaysTheOrder) {
  EXPECT_EQ(LayoutOfPlan(PlanOf(2, 4, 1)).order, Layout().order);
  Plan plan = PlanOf(2, 4, 1);
  plan.mesh = {{{"tp", 2}, {"tpq", 4}, {"fsdp", 2}, {"cp", 2}, {"sp", 2}, {"pp", 2}}};
  const Layout layout = LayoutOfPlan(plan);
  EXPECT_EQ(layout.cp, 4);
  EXPECT_EQ(layout.mesh().ToString(), "tp=8 dp=1 fsdp=2 ep=1 cp=4 pp=2");
}

TEST(Finalists, CpuTrafficHidesBehindNothing) {
  EXPECT_EQ(ExecutionOf(MachineOf(DeviceProfile()), DType::kF32).overlap_data, 0);
  EXPECT_EQ(ExecutionOf(*FindMachine("h100"), DType::kBF16).overlap_data, 1);
}

}  // namespace
}  // namespace tacc::graph
