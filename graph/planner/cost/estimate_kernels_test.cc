// What an estimate charges for single kernels of a unit.
#include "graph/planner/cost/estimate.h"
#include "graph/planner/testing/easy_model.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

// An attention with scores of 1e12 FLOPs in place of a product.
ModelWork WithAttention(AttentionMask mask) {
  ModelWork model = EasyModel();
  for (KernelWork* k : {&model.units[0].forward.kernels[0], &model.units[0].backward.kernels[0]}) {
    k->exponentials = 1e9;
    k->mask = mask;
  }
  return model;
}

// What a step with that kernel beside the others takes more: of all layers and micro-batches.
double SecondsOf(const KernelWork& kernel, const Layout& l, const Execution& x = {},
                 const Cluster& cluster = EasyCluster()) {
  ModelWork with = EasyModel();
  const bool is_forward = kernel.purpose == KernelWork::Purpose::kCast;
  (is_forward ? with.units[0].forward : with.units[0].backward).kernels.push_back(kernel);
  return EstimateStep(with, cluster, l, x).compute - EstimateStep(EasyModel(), cluster, l, x).compute;
}

// Weights are cast as they lie at rest, and gathered narrow.
TEST(Estimate, CastsWhatARankHasOfAWeight) {
  KernelWork cast;
  cast.purpose = KernelWork::Purpose::kCast;
  cast.region = Split::kTensor;
  cast.weight_bytes = 8e9;  // 8 ms a layer
  Layout l;
  EXPECT_NEAR(SecondsOf(cast, l), 8 * 8e-3, 1e-9);
  l.recompute = true;  // not kept for the backward
  EXPECT_NEAR(SecondsOf(cast, l), 2 * 8 * 8e-3, 1e-9);
  l.recompute = false;
  l.sizes[Axis::kFsdp] = 4;
  l.reshard = false;
  EXPECT_NEAR(SecondsOf(cast, l), 8 * 2e-3, 1e-9);
  l.reshard = true;
  EXPECT_NEAR(SecondsOf(cast, l), 2 * 8 * 2e-3, 1e-9);
  l.zero_stage = 1;  // the update writes what is used
  EXPECT_NEAR(SecondsOf(cast, l), 0, 1e-12);
}

TEST(Estimate, AddsGradientsToThoseOfEarlierMicroBatches) {
  KernelWork add;
  add.purpose = KernelWork::Purpose::kAccumulation;
  add.region = Split::kTensor;
  add.weight_bytes = 8e9;
  Layout l;
  EXPECT_NEAR(SecondsOf(add, l), 0, 1e-12);
  l.accumulation = 3;
  EXPECT_NEAR(SecondsOf(add, l), 3 * 8 * 8e-3, 1e-9);
  l.sizes[Axis::kFsdp] = 4;
  EXPECT_NEAR(SecondsOf(add, l), 3 * 8 * 2e-3, 1e-9);
  add.is_of_product = true;  // the kernel of the product adds, unless the sum over ranks comes between
  EXPECT_NEAR(SecondsOf(add, l), 3 * 8 * 2e-3, 1e-9);
  l.sizes[Axis::kFsdp] = 1;
  EXPECT_NEAR(SecondsOf(add, l), 0, 1e-12);
  Cluster tiled = EasyCluster();  // where a product does not hide what it reads
  tiled.machine.multiprocessors = 1;
  EXPECT_NEAR(SecondsOf(add, l, {}, tiled), 3 * 8 * 8e-3 / 3, 1e-9);
}

// Narrow products waste much of their tiles: as one they waste less, where they may be one.
TEST(Estimate, JoinsProductsWhereThatIsFaster) {
  KernelWork product;
  product.dtype = DType::kBF16;
  product.region = Split::kTensor;
  product.flops = 1e12;
  product.depth = {1024, Split::kTensor};
  product.joins_depth = true;  // of a gradient
  product.parts = {0.75, 0.25};
  Cluster cluster = EasyCluster();
  cluster.machine.matmul_depth = 256;
  cluster.machine.multiprocessors = 1;
  const auto seconds = [&](const KernelWork& k, const Layout& l) {
    ModelWork model = EasyModel();
    model.units[0].forward.kernels = {k};
    model.units[0].backward.kernels.clear();
    return EstimateStep(model, cluster, l, {}).compute / 8;
  };
  const double joined = 1e-2 * (1 + 256.0 / 1024), apart = 1e-2 * (1 + 256.0 / 768 * 0.75 + 256.0 / 256 * 0.25);
  EXPECT_NEAR(seconds(product, {}), joined, 1e-9);
  EXPECT_LT(joined, apart);
  product.parts = {0.5, 0.25, 0.25};  // q, k and v: a ring takes keys and values alone
  EXPECT_NEAR(seconds(product, {}), joined, 1e-9);
  Layout ring;
  ring.sizes[Axis::kCp] = 2;
  EXPECT_NEAR(seconds(product, ring), (1e-2 + 3 * 256.0 / 1024 * 1e-2) / 2, 1e-9);
}

// What all tp ranks read whole takes each of them its whole time.
TEST(Estimate, TensorParallelismDoesNotSplitWhatItGathers) {
  KernelWork k;
  k.region = Split::kTensor;
  k.sample_bytes = 8e9;
  Layout l = Of(1, 1, 4, 1);
  EXPECT_NEAR(SecondsOf(k, l), 8 * 2e-3, 1e-9);
  std::swap(k.sample_bytes, k.whole_bytes);
  EXPECT_NEAR(SecondsOf(k, l), 8 * 8e-3, 1e-9);
}

TEST(Estimate, ARepeatedForwardGathersForItsBackward) {
  ModelWork model = EasyModel();
  model.units[0].backward.gathers[0].is_shared = true;
  model.units[0].forward.scatters[0].is_repeated = false;
  Layout l = Of(1, 1, 4, 1);
  const double kept = EstimateStep(model, EasyCluster(), l, {}).tensor;
  l.recompute = true;  // one gather more in the forward, one less in the backward
  EXPECT_NEAR(EstimateStep(model, EasyCluster(), l, {}).tensor, kept, 1e-9);
}

// A kernel starts after its own issue, unless the host runs ahead of a unit's.
TEST(Estimate, IssueIsOfEachKernel) {
  ModelWork model = EasyModel();
  KernelWork tiny;
  model.units[0].forward.kernels.insert(model.units[0].forward.kernels.end(), 100, tiny);
  Cluster cluster = EasyCluster();
  const double without = EstimateStep(model, cluster, {}, {}).compute;
  cluster.machine.issue_seconds = 1e-5;
  EXPECT_NEAR(EstimateStep(model, cluster, {}, {}).compute - without, 8 * 100 * 1e-5, 1e-6);
  Execution ahead;
  ahead.issues_ahead = true;
  EXPECT_NEAR(EstimateStep(model, cluster, {}, ahead).compute, without, 0.01 * without);
}

TEST(Estimate, AttentionTakesTheSpeedThatIsKnownOfItsMask) {
  Cluster cluster = EasyCluster();
  cluster.machine.attention = {.half = 5e13, .half_any = 1e13};
  const auto compute = [&](AttentionMask mask, const Layout& layout) {
    return EstimateStep(WithAttention(mask), cluster, layout, {}).compute;
  };
  // Of a layer's three products two are attentions.
  const Layout one = Of(1, 1, 1, 1);
  EXPECT_NEAR(compute(AttentionMask::kPlain, one), 8 * (2e12 / 5e13 + 1e12 / 1e14), 1e-9);
  EXPECT_NEAR(compute(AttentionMask::kAny, one), 8 * (2e12 / 1e13 + 1e12 / 1e14), 1e-9);
  Layout ring = one;
  ring.sizes[Axis::kCp] = 2;
  EXPECT_NEAR(compute(AttentionMask::kPlain, ring), 8 * (2e12 / 1e13 + 1e12 / 1e14) / 2, 1e-9);
}

}  // namespace
}  // namespace tacc::graph
