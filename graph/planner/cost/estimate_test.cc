#include "graph/planner/cost/estimate.h"

#include "graph/planner/testing/easy_model.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

void ExpectSumsUp(const StepEstimate& e) {
  EXPECT_NEAR(e.seconds, e.compute + e.communication() + e.imbalance + e.bubble + e.update, 1e-12);
}

TEST(Estimate, OneDeviceTakesItsFlopsAndTheUpdate) {
  const StepEstimate e = EstimateStep(EasyModel(), EasyCluster(), Of(1, 1, 1, 4), {});
  EXPECT_NEAR(e.compute, 4 * 8 * 3e12 / 1e14, 1e-9);
  EXPECT_NEAR(e.update, 8e8 * 30 / 1e12, 1e-9);
  EXPECT_EQ(e.communication(), 0);
  ExpectSumsUp(e);
}

TEST(Estimate, TensorParallelDividesProductsAndSendsActivations) {
  const StepEstimate e = EstimateStep(EasyModel(), EasyCluster(), Of(1, 1, 8, 1), {});
  EXPECT_NEAR(e.compute, 8 * 3e12 / 1e14 / 8, 1e-9);
  // Four collectives of 1e8 bytes a layer, 7/8 of each over 1e11 bytes/s.
  EXPECT_NEAR(e.tensor, 8 * 4 * 1e8 * 7 / 8 / 1e11, 1e-9);
  ExpectSumsUp(e);
}

// Shards over fsdp are gathered and summed as they lie only in few rows and without padding.
TEST(Estimate, CopiesAroundCollectivesTakeTheirTime) {
  const auto copied = [](const WeightDims& dims, const Machine& machine, DType reduce, int zero_stage, int64_t tp = 1) {
    Cluster cluster = EasyCluster();
    cluster.machine = machine;
    Execution execution = ExecutionOf(machine, DType::kBF16, reduce);
    execution.overlap_data = 0;
    Layout l;
    l.sizes[Axis::kFsdp] = 8;
    l.sizes[Axis::kTp] = tp;
    l.zero_stage = zero_stage;
    ModelWork model = EasyModel();
    const double without = EstimateStep(model, cluster, l, execution).seconds;
    model.units[0].weights = {dims};
    const double bytes = 8 * 1e8 / static_cast<double>(tp);  // of an element's byte
    return (EstimateStep(model, cluster, l, execution).seconds - without) * machine.memory_bytes_per_second / bytes;
  };
  const Machine gpu = EasyCluster().machine;
  Machine cpu = gpu, in_order = gpu;
  cpu.shares_cores = true;
  in_order.sums_in_order = true;
  const WeightDims first = {{1e4}, {1e4}}, padded = {{10003}, {1e8 / 10003}}, few_rows = {{10}, {1e7}};
  const DType f32 = DType::kF32, bf16 = DType::kBF16;
  EXPECT_NEAR(copied(first, gpu, f32, 3), 0, 1e-6);
  EXPECT_NEAR(copied(few_rows, gpu, f32, 3), 0, 1e-6);
  // Heads do not divide, heads and their rows do.
  EXPECT_NEAR(copied({{12}, {66}, {1e8 / 792}}, gpu, f32, 3), 0, 1e-6);
  // Two gathers of bf16, and a sum of f32 with its result, each read and written.
  EXPECT_NEAR(copied({{9}, {12}, {1e8 / 108}}, gpu, f32, 3), 2 * (2 * 2 + 4 * 9.0 / 8), 0.02);
  EXPECT_NEAR(copied(padded, gpu, f32, 3), 2 * (2 * 2 + 4 * 9.0 / 8), 0.02);
  EXPECT_NEAR(copied(padded, in_order, f32, 3), 2 * 2 * 2, 0.02);
  EXPECT_NEAR(copied(padded, cpu, f32, 3), 0, 1e-6);
  // The ranks' own sums take what lies in one row, also with padding; the library's gathers take few rows without.
  EXPECT_NEAR(copied({{9}, {1e8 / 9}}, gpu, bf16, 3), 2 * 2 * 2, 0.02);
  // Where tp splits a dim in between, there are rows: 5 times 8 of 16, 10 times 7 of 14.
  const WeightDims rows_40 = {{5}, {16, Split::kTensor}, {1.25e6}}, rows_70 = {{10}, {14, Split::kTensor}, {714288}};
  EXPECT_NEAR(copied(rows_40, gpu, f32, 3, 2), 0, 1e-6);
  EXPECT_NEAR(copied(rows_40, gpu, bf16, 3, 2), 2 * 2, 0.02);
  EXPECT_NEAR(copied(rows_70, gpu, f32, 3, 2), 2 * (2 * 2 + 4 * 9.0 / 8), 0.02);
}

// Gathers and sums hide behind the layers beside, but not across the calls of a pipeline: in each part of a stage those
// of one layer wait.
TEST(Estimate, NothingHidesAcrossThePassesOfAPipeline) {
  const Cluster cluster = EasyCluster();
  const GroupShape group{4, 4};
  const double traffic = 2 * CollectiveSeconds(cluster.machine, CollectiveKind::kAllGather, 1e8 * 2, group) +
                         CollectiveSeconds(cluster.machine, CollectiveKind::kReduceScatter, 1e8 * 4, group);
  Layout l;
  l.sizes[Axis::kFsdp] = 4;
  l.accumulation = 8;
  EXPECT_NEAR(EstimateStep(EasyModel(), cluster, l, {}).data, 0, 1e-12);
  l.sizes[Axis::kPp] = 2;
  EXPECT_NEAR(EstimateStep(EasyModel(), cluster, l, {}).data, 8 * traffic, 1e-9);
  l.schedule = PipelineSchedule::kInterleaved;
  l.chunks = 2;
  EXPECT_NEAR(EstimateStep(EasyModel(), cluster, l, {}).data, 8 * 2 * traffic, 1e-9);
}

// Until its weight pass a stage has what products take in, also of layers whose forward ran again for the backward.
TEST(Estimate, WeightPassesKeepWhatRecomputationMade) {
  Layout l;
  l.sizes[Axis::kPp] = 2;
  l.accumulation = 8;
  l.schedule = PipelineSchedule::kZeroBubble;
  l.recompute = true;
  // Of the last stage's four layers: what enters each, of one micro-batch, and three quarters of all that they save, of
  // two.
  EXPECT_NEAR(EstimateMemory(EasyModel(), l, {}).activations, 4 * 1e8 + 2 * 0.75 * 4 * 5e8, 1);
  l.schedule = PipelineSchedule::k1F1B;
  EXPECT_NEAR(EstimateMemory(EasyModel(), l, {}).activations, 2 * 4 * 1e8, 1);
}

// Sums that widen are the ranks' own, in two levels, and of half the bytes.
TEST(Estimate, SumsThatWidenAreChargedAsTheyRun) {
  Cluster cluster = EasyCluster();
  Layout l;
  l.sizes[Axis::kFsdp] = 32;
  l.zero_stage = 2;
  for (const DType reduce : {DType::kF32, DType::kBF16}) {
    Execution execution = ExecutionOf(cluster.machine, DType::kBF16, reduce);
    execution.overlap_data = 0;
    const GroupShape group{32, 8};
    Machine sums = cluster.machine;
    sums.sums_in_order = reduce == DType::kBF16;
    const double sum = CollectiveSeconds(sums, CollectiveKind::kReduceScatter, 1e8 * ByteSize(reduce), group);
    const double gather = CollectiveSeconds(cluster.machine, CollectiveKind::kAllGather, 8e8 * 2, group);
    EXPECT_NEAR(EstimateStep(EasyModel(), cluster, l, execution).data, 8 * sum + gather, 1e-9) << Name(reduce);
  }
}

// Sums of gradients that take longer than a backward, not longer than forward and backward.
TEST(Estimate, SumsHideBehindTheBackwardAlone) {
  ModelWork model = EasyModel();
  const double backward = 0.02;  // of a layer, beside 0.01 of its forward
  Layout l = Of(2, 1, 1, 1);
  l.sizes[Axis::kFsdp] = 16;
  l.zero_stage = 2;
  const GroupShape group{16, 8};
  const auto sum = [&] {
    const double elements = model.units[0].parameters.tensor;
    return CollectiveSeconds(EasyCluster().machine, CollectiveKind::kReduceScatter, 4 * elements, group);
  };
  model.units[0].parameters.tensor *= 0.025 / sum();
  ASSERT_NEAR(sum(), 0.025, 1e-9);
  const auto exposed = [&] {
    // Of a micro-batch, without what is sent once a step.
    l.accumulation = 4;
    const double four = EstimateStep(model, EasyCluster(), l, {}).data;
    l.accumulation = 1;
    return (four - EstimateStep(model, EasyCluster(), l, {}).data) / 3;
  };
  // A stage's four layers, the last of which hides nothing.
  EXPECT_NEAR(exposed(), 4 * (sum() - backward) + backward, 1e-9);
  l.schedule = PipelineSchedule::kZeroBubble;  // Weight passes are half of it.
  EXPECT_NEAR(exposed(), 4 * (sum() - backward / 2) + backward / 2, 1e-9);
}

TEST(Estimate, PipelineWaitsForFillAndDrain) {
  Layout l = Of(4, 1, 1, 8);
  const StepEstimate plain = EstimateStep(EasyModel(), EasyCluster(), l, {});
  const double slot = 2 * 3e12 / 1e14, send = 1e8 / 1e11;
  EXPECT_NEAR(plain.compute, 8 * slot, 1e-9);
  // A micro-batch's answer comes later by a message each way and hop.
  EXPECT_GT(plain.bubble, 3 * slot + 2 * 3 * send);
  EXPECT_LT(plain.bubble, 3 * slot + 3 * 8 * send);
  EXPECT_EQ(plain.sends, 0);
  ExpectSumsUp(plain);
  Execution waits;
  waits.overlap_sends = 0;
  const StepEstimate one_by_one = EstimateStep(EasyModel(), EasyCluster(), l, waits);
  EXPECT_NEAR(one_by_one.sends, 2 * 8 * send, 1e-9);
  EXPECT_NEAR(one_by_one.bubble, 3 * slot + 2 * 3 * send, 1e-9);
  l.schedule = PipelineSchedule::kInterleaved;
  l.chunks = 2;
  Cluster instant = EasyCluster();
  instant.machine.intra_bytes_per_second = instant.machine.inter_bytes_per_second = 1e30;
  EXPECT_NEAR(EstimateStep(EasyModel(), instant, l, {}).bubble, 3 * slot / 2, 1e-9);
  l.schedule = PipelineSchedule::kZeroBubble;
  l.chunks = 1;
  EXPECT_NEAR(EstimateStep(EasyModel(), instant, l, {}).bubble, 3 * slot / 3, 1e-9);
}

// Nine tensors, each summed and gathered by itself: nine times the latency once a step, where that is once a step.
TEST(Estimate, EachTensorIsSentByItself) {
  ModelWork model = EasyModel();
  Cluster cluster = EasyCluster();
  cluster.machine.intra_latency_seconds = 1e-3;
  Layout l;
  l.sizes[Axis::kDp] = 4;
  l.accumulation = 10;
  Execution no_overlap;
  no_overlap.hides_replica_sums = false;
  const double as_one = EstimateStep(model, cluster, l, no_overlap).data;
  model.units[0].num_parameters = 9;
  const double latency = CollectiveSeconds(cluster.machine, CollectiveKind::kReduceScatter, 0, {4, 4}) +
                         CollectiveSeconds(cluster.machine, CollectiveKind::kAllGather, 0, {4, 4});
  EXPECT_NEAR(EstimateStep(model, cluster, l, no_overlap).data - as_one, (8 * 9 - 1) * latency, 1e-9);
}

// Three tokens' parts of four: keys and values come thrice, their gradients go on twice and then home, and all but the
// last hides behind the attention of a step.
TEST(Estimate, ARingHidesBehindItsAttentionButForTheWayHome) {
  ModelWork model = EasyModel();
  KernelWork scores = model.units[0].forward.kernels[0];
  scores.exponentials = 1e-9;  // an attention's
  model.units[0].forward.kernels = model.units[0].backward.kernels = {scores};
  model.units[0].forward.ring.keys = model.units[0].backward.ring.keys = 1e8;
  model.units[0].backward.ring.key_gradients = 2e8;
  Layout l;
  l.sizes[Axis::kCp] = 4;
  l.zero_stage = 1;
  Cluster fast = EasyCluster();
  fast.machine.intra_bytes_per_second = 1e12;
  EXPECT_NEAR(EstimateStep(model, fast, l, {}).context, 8 * (2e8 / 4) / 1e12, 1e-9);
  // Where keys alone take longer than a step of the attention, all that is beyond it shows.
  Cluster slow = EasyCluster();
  slow.machine.intra_bytes_per_second = 1e9;
  const double keys = 1e8 / 4 / 1e9, gradients = 2 * keys, attention = 1e12 / 1e14 / 4 / 4, add = 1.5 * 2e8 / 4 / 1e12;
  const double forward = 3 * (keys - attention);
  const double backward =
      2 * (keys - attention - add) + (keys + gradients - attention - add) + (gradients - attention - add) + gradients;
  EXPECT_NEAR(EstimateStep(model, slow, l, {}).context, 8 * (forward + backward), 1e-6);
}

// Weights that come over the network hide behind tensor parallelism's collectives inside of nodes too; where both go
// over the same links these take longer.
TEST(Estimate, TrafficHidesBehindWhatGoesOverOtherLinks) {
  ModelWork model = EasyModel();
  model.units[0].parameters.tensor = 1e9;
  const auto data = [&](int64_t fsdp, int64_t tp, int64_t devices_per_node) {
    Layout l;
    l.sizes[Axis::kFsdp] = fsdp;
    l.sizes[Axis::kTp] = tp;
    Cluster cluster = EasyCluster();
    cluster.machine.devices_per_node = devices_per_node;
    const StepEstimate e = EstimateStep(model, cluster, l, {});
    return std::make_pair(e.data, e.tensor);
  };
  model.units[0].forward.kernels.clear();
  const auto [across, held_up] = data(4, 2, 2);
  const double gathers = 8 * CollectiveSeconds(EasyCluster().machine, CollectiveKind::kAllGather, 1e9, {4, 1});
  EXPECT_NEAR(across, 2 * gathers + 2 * gathers - held_up - 8 * 2 * 1e12 / 2 / 1e14, 0.02 * across);
  model = EasyModel();
  const auto [inside, same_links] = data(2, 2, 8);
  EXPECT_GT(inside, 0);
  EXPECT_LE(inside, same_links);
}

TEST(Estimate, RecomputationCostsAForwardAndSavesMemory) {
  Layout l = Of(1, 1, 1, 2);
  const StepEstimate kept = EstimateStep(EasyModel(), EasyCluster(), l, {});
  const MemoryEstimate all = EstimateMemory(EasyModel(), l, {});
  l.recompute = true;
  const StepEstimate repeated = EstimateStep(EasyModel(), EasyCluster(), l, {});
  const MemoryEstimate inputs = EstimateMemory(EasyModel(), l, {});
  EXPECT_NEAR(repeated.recompute, 2 * 8e12 / 1e14, 1e-9);
  EXPECT_NEAR(repeated.seconds - kept.seconds, repeated.recompute, 1e-9);
  EXPECT_NEAR(all.activations, 8 * 5e8, 1);
  EXPECT_NEAR(inputs.activations, 8 * 1e8, 1);
  EXPECT_NEAR(inputs.temporaries, 5e8, 1);  // one layer's at a time
}

// Two layers' gradients are whole while one's are summed over shards. A step of one micro-batch keeps no others: they
// come as what is kept goes.
TEST(Estimate, MemoryIsThatOfTheFullestInstant) {
  ModelWork model = EasyModel();
  Layout l;
  l.sizes[Axis::kFsdp] = 4;
  l.accumulation = 2;
  const MemoryEstimate many = EstimateMemory(model, l, {});  // before the first
  EXPECT_NEAR(many.activations, 8 * 5e8, 1);
  EXPECT_NEAR(many.copies, 2 * 2e8, 1);
  EXPECT_NEAR(many.gradients, 8e8, 1);
  EXPECT_NEAR(many.temporaries, 0, 1);
  // Where what is kept is less than the gradients of a layer, the second layer's end.
  for (double* bytes : {&model.units[0].saved_home_bytes, &model.units[0].saved_tensor_bytes}) *bytes /= 10;
  const MemoryEstimate sums = EstimateMemory(model, l, {});
  EXPECT_NEAR(sums.activations, 6 * 5e7, 1);
  EXPECT_NEAR(sums.temporaries, 2 * 4e8, 1);
  EXPECT_NEAR(sums.copies, 2e8, 1);
  l.accumulation = 1;
  const MemoryEstimate one = EstimateMemory(model, l, {});
  EXPECT_NEAR(one.gradients, 5 * 1e8, 1);  // the seventh layer's end: the last has none to gather ahead
  EXPECT_NEAR(one.activations, 5e7, 1);
}

TEST(Estimate, ShardedWeightsTravelWhereComputeDoesNotHideThem) {
  Execution exposed;
  exposed.overlap_data = 0;
  Layout l;
  l.sizes[Axis::kFsdp] = 8;
  const StepEstimate e = EstimateStep(EasyModel(), EasyCluster(), l, exposed);
  // Gathered twice in two bytes, reduced in four: 8 bytes an element.
  EXPECT_NEAR(e.data, 8 * 1e8 * 8 * 7 / 8 / 1e11, 1e-9);
  EXPECT_EQ(EstimateStep(EasyModel(), EasyCluster(), l, {}).data, 0);
  l.accumulation = 2;
  const MemoryEstimate sharded = EstimateMemory(EasyModel(), l, {});
  EXPECT_NEAR(sharded.weights + sharded.gradients + sharded.optimizer, 16 * 8e8 / 8, 1);
}

TEST(Estimate, SumsOverReplicasHideOnlyBehindTheBackwardThatTheyRunBeside) {
  const Layout l = Of(1, 8, 1, 2);
  Execution execution;
  EXPECT_EQ(EstimateStep(EasyModel(), EasyCluster(), l, execution).data, 0);
  execution.hides_replica_sums = false;
  // An all-reduce in four bytes.
  EXPECT_NEAR(EstimateStep(EasyModel(), EasyCluster(), l, execution).data, 2 * 4 * 8e8 * 7 / 8 / 1e11, 1e-9);
  EXPECT_FALSE(ExecutionOf(EasyCluster().machine, DType::kBF16).hides_replica_sums);
}

TEST(Estimate, ZeroStagesTradeTrafficForMemory) {
  Execution exposed;
  exposed.overlap_data = 0;
  Layout l;
  l.sizes[Axis::kFsdp] = 8;
  l.accumulation = 4;
  const double gathered = 2 * 8e8 * 7 / 8 / 1e11, reduced = 4 * 8e8 * 7 / 8 / 1e11;  // seconds of all weights
  const auto expect = [&](int64_t stage, double data, double bytes, bool reduce_each = true) {
    l.zero_stage = stage;
    l.reduce_each_micro_batch = reduce_each;
    EXPECT_NEAR(EstimateStep(EasyModel(), EasyCluster(), l, exposed).data, data, 1e-9) << stage;
    const MemoryEstimate m = EstimateMemory(EasyModel(), l, exposed);
    EXPECT_NEAR(m.weights + m.copies + m.gradients + m.optimizer, bytes, 1) << stage;
  };
  // bf16: masters are sharded, their copies are whole.
  expect(1, reduced + gathered, 8e8 * (2 + 4 + 12.0 / 8));
  expect(2, 4 * reduced + gathered, 8e8 * (2 + 16.0 / 8));
  expect(3, 4 * (reduced + 2 * gathered), 8e8 * 16.0 / 8 + 2 * 2 * 1e8);
  expect(3, reduced + 4 * 2 * gathered, 8e8 * (4 + 12.0 / 8) + 2 * 2 * 1e8, /*reduce_each=*/false);
}

// Four nodes of eight: what lies inside a node has ten times the bandwidth.
TEST(Estimate, TheOrderOfAxesSaysWhatCrossesNodes) {
  Layout l = Of(1, 4, 8, 1);
  const StepEstimate inside = EstimateStep(EasyModel(), EasyCluster(), l, {});
  l.order = {Axis::kPp, Axis::kTp, Axis::kFsdp, Axis::kEp, Axis::kCp, Axis::kDp};  // tp between nodes, dp inside
  const StepEstimate between = EstimateStep(EasyModel(), EasyCluster(), l, {});
  EXPECT_EQ(l.ToString(), "tp=8 dp=4, micro-batch 1 x 1");
  EXPECT_NEAR(inside.compute, between.compute, 1e-9);
  EXPECT_GT(between.tensor, 4 * inside.tensor);
  Layout stages = Of(8, 4, 1, 8);
  const double far = EstimateStep(EasyModel(), EasyCluster(), stages, {}).bubble;
  stages.order = {Axis::kDp, Axis::kFsdp, Axis::kEp, Axis::kCp, Axis::kTp, Axis::kPp};
  EXPECT_LT(EstimateStep(EasyModel(), EasyCluster(), stages, {}).bubble, far);
}

TEST(Estimate, LayoutsPrint) {
  Layout l = Of(2, 4, 8, 16);
  l.recompute = true;
  EXPECT_EQ(l.ToString(), "pp=2 dp=4 tp=8, micro-batch 1 x 16, 1f1b, gc");
  EXPECT_EQ(Layout{}.ToString(), "one rank, micro-batch 1 x 1");
}

}  // namespace
}  // namespace tacc::graph
