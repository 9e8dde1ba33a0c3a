#include "graph/planner/cost/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace tacc::graph {
namespace {

using ::testing::HasSubstr;

TEST(Cluster, PresetsArePlausibleAndPrinted) {
  EXPECT_LE(MachineConstants().size(), 14u);
  std::set<std::string> names;
  for (const Machine& m : MachinePresets()) {
    EXPECT_TRUE(names.insert(m.name).second);
    const std::string text = Describe(m);
    for (const MachineConstant& c : MachineConstants()) {
      EXPECT_GE(m.*c.value, c.low) << m.name << " " << c.name;
      EXPECT_LE(m.*c.value, c.high) << m.name << " " << c.name;
      EXPECT_THAT(text, HasSubstr(c.name));
    }
  }
}

TEST(Cluster, ParsesPresetsAndOverrides) {
  auto cluster = ParseCluster(R"({"machine": "h100", "nodes": 16, "inter_bytes_per_second": 25e9})");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->num_devices(), 128);
  EXPECT_EQ(cluster->machine.inter_bytes_per_second, 25e9);
  EXPECT_EQ(cluster->machine.half_flops_per_second, 989e12);
  auto few = ParseCluster(R"({"machine": "a100", "gpus": 4})");
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(few->machine.name, "a100-80g");
  EXPECT_EQ(few->num_nodes, 1);
  EXPECT_EQ(few->num_devices(), 4);
}

TEST(Cluster, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "cluster: not a mapping of fields"},
      {R"({"nodes": 2})", "cluster: machine is missing; known: a100-40g"},
      {R"({"machine": "h1000"})", "cluster: machine \"h1000\" is not known; known: a100-40g, a100-80g, a800, h100"},
      {R"({"machine": "h100", "gpus": 20})", "not a number of whole h100 nodes of 8; nearest legal values: 16 and 24"},
      {R"({"machine": "h100", "gpus": 0})", "cluster: gpus = 0; wanted a whole number from 1"},
      {R"({"machine": "h100", "gpus": 8, "nodes": 1})", "both given"},
      {R"({"machine": "h100", "matmul_fraction": 1.5})", "matmul_fraction = 1.5; wanted 0.05 to 1 of peak"},
      {R"({"machine": "h100", "memory": 1})", "memory is not known; known: machine, nodes, gpus"}};
  for (const auto& [json, message] : cases) {
    const auto cluster = ParseCluster(json);
    ASSERT_FALSE(cluster.ok()) << json;
    EXPECT_THAT(std::string(cluster.status().message()), HasSubstr(message));
  }
}

DeviceProfile ProbedGpu() {
  DeviceProfile gpu;
  gpu.name = "cuda:0";
  gpu.kind = "cuda";
  gpu.model = "NVIDIA H100 80GB HBM3";
  gpu.threads = 4;
  gpu.cpus = 2;  // Of the host: nothing to a GPU's speed.
  gpu.matmul_flops_per_second = {{DType::kF32, 5e13}, {DType::kBF16, 7e14}};
  gpu.peak_flops_per_second = {{DType::kBF16, 989e12}, {DType::kF16, 989e12}};
  gpu.memory_bytes_per_second = 3e12;
  gpu.link_bytes_per_second = 3.7e11;
  return gpu;
}

TEST(Cluster, AProbedGpuReachesWhatWasMeasured) {
  const Machine m = MachineOf(ProbedGpu());
  EXPECT_FALSE(m.shares_cores);
  EXPECT_EQ(m.PeakShare(), 1);
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, 7e14, 0), 1, 1e-9);
  EXPECT_NEAR(KernelSeconds(m, DType::kF32, 5e13, 0), 1, 1e-9);
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, 7e14, 0, {0, 0, m.matmul_depth}), 2, 1e-9);
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, 0, 3e12), 1, 1e-9);
  for (const MachineConstant& c : MachineConstants()) {
    if (c.value == &Machine::memory_bytes) continue;
    EXPECT_GE(m.*c.value, c.low) << c.name;
    EXPECT_LE(m.*c.value, c.high) << c.name;
  }
  EXPECT_GT(m.issue_seconds, 0);
  EXPECT_GT(m.intra_latency_seconds, 0);
}

TEST(Cluster, AttentionIsAsFastAsTheFastestBackendThatTakesTheMask) {
  DeviceProfile gpu = ProbedGpu();
  const auto seconds = [&gpu](DType dtype, AttentionMask mask) {
    return AttentionSeconds(MachineOf(gpu), dtype, mask, 1e15, 0, 0);
  };
  // Not measured: a part of products.
  EXPECT_NEAR(seconds(DType::kBF16, AttentionMask::kPlain), 1e15 / 7e14 / MachineOf(gpu).attention_fraction, 1e-9);
  gpu.attention_flops_per_second = {{"tiles", 5e12}, {"tensor", 1e14}, {"flash", 3e14}, {"cudnn", 4e14}};
  EXPECT_NEAR(seconds(DType::kBF16, AttentionMask::kPlain), 2.5, 1e-9);
  EXPECT_NEAR(seconds(DType::kF16, AttentionMask::kAny), 10, 1e-9);
  EXPECT_NEAR(seconds(DType::kF32, AttentionMask::kPlain), 200, 1e-9);
  gpu.attention_flops_per_second = {{"tiles", 5e12}};
  EXPECT_NEAR(seconds(DType::kBF16, AttentionMask::kPlain), 200, 1e-9);
  // Memory binds; exponentials are in what was measured, and beside products where nothing was.
  EXPECT_NEAR(AttentionSeconds(MachineOf(gpu), DType::kBF16, AttentionMask::kPlain, 5e12, 1e12, 6e12), 2, 1e-9);
  const Machine preset = *FindMachine("h100");
  const double scores = 1e9 / preset.exponentials_per_second, part = preset.attention_fraction;
  EXPECT_NEAR(AttentionSeconds(preset, DType::kBF16, AttentionMask::kPlain, 256e9, 1e9, 0),
              (KernelSeconds(preset, DType::kBF16, 256e9, 0) + scores) / part, 1e-9);
  EXPECT_NEAR(AttentionSeconds(preset, DType::kBF16, AttentionMask::kPlain, 256e9, 1e9, 0, 128e9),
              (KernelSeconds(preset, DType::kBF16, 384e9, 0) + scores) / part, 1e-9);
}

TEST(Cluster, MfuCountsTheVendorsPeakOfKnownGpus) {
  DeviceProfile gpu = ProbedGpu();
  const Machine known = MachineOf(gpu);
  EXPECT_EQ(known.CountedPeak(DType::kBF16), 989e12);
  EXPECT_STREQ(known.PeakSource(DType::kBF16), "table");
  EXPECT_EQ(known.CountedPeak(DType::kF32), 5e13);
  EXPECT_STREQ(known.PeakSource(DType::kF32), "measured");
  gpu.peak_flops_per_second.clear();
  EXPECT_EQ(MachineOf(gpu).CountedPeak(DType::kBF16), 7e14);
  EXPECT_STREQ(MachineOf(gpu).PeakSource(DType::kBF16), "measured");
  const Machine preset = *FindMachine("h100");
  EXPECT_EQ(preset.CountedPeak(DType::kF32), 67e12);
  EXPECT_STREQ(preset.PeakSource(DType::kF32), "table");
}

TEST(Cluster, PredictionsTakeWhatIsSustainedAndMfuThePeak) {
  DeviceProfile cpu;
  cpu.kind = "cpu";
  cpu.matmul_flops_per_second = {{DType::kF32, 1e11}};
  cpu.matmul_fraction = 0.8;
  cpu.memory_bytes_per_second = 1e10;
  const Machine m = MachineOf(cpu);
  EXPECT_NEAR(KernelSeconds(m, DType::kF32, 8e10, 0), 1, 1e-9);
  EXPECT_NEAR(KernelSeconds(m, DType::kF32, 0, 1e10), 1, 1e-9);
  EXPECT_EQ(m.CountedPeak(DType::kF32), 1e11);
}

TEST(Cluster, ProbedGpusOfSeveralMachinesMeetOverANetwork) {
  DeviceProfile gpu = ProbedGpu();
  EXPECT_EQ(MakeCluster(MachineOf(gpu), 16)->num_nodes, 1);
  gpu.devices_per_machine = 8;
  const auto cluster = MakeCluster(MachineOf(gpu), 16);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->num_nodes, 2);
  EXPECT_LT(cluster->machine.inter_bytes_per_second, cluster->machine.intra_bytes_per_second);
}

TEST(Cluster, ShapesFollowTheMesh) {
  const Mesh mesh{{{"pp", 4}, {"dp", 2}, {"fsdp", 4}, {"tp", 4}}};
  auto shape = [&](AxisList axes) {
    const GroupShape g = ShapeOf(mesh, axes, 8);
    return std::make_pair(g.size, g.in_node);
  };
  EXPECT_EQ(shape({3}), std::make_pair(int64_t{4}, int64_t{4}));
  EXPECT_EQ(shape({2}), std::make_pair(int64_t{4}, int64_t{2}));
  EXPECT_EQ(shape({1}), std::make_pair(int64_t{2}, int64_t{1}));
  EXPECT_EQ(shape({1, 2}), std::make_pair(int64_t{8}, int64_t{2}));
  EXPECT_EQ(shape({2, 3}), std::make_pair(int64_t{16}, int64_t{8}));
}

TEST(Cluster, CollectivesGoByTheSlowestLink) {
  Machine m = *FindMachine("a100-80g");
  m.bandwidth_fraction = 1;
  m.intra_latency_seconds = m.inter_latency_seconds = 0;
  // 7/8 of the bytes over 300 GB/s; between nodes eight devices' shares of 25 GB/s; one device a node has one share.
  EXPECT_NEAR(CollectiveSeconds(m, CollectiveKind::kAllGather, 3e11, {8, 8}), 0.875, 1e-9);
  EXPECT_NEAR(CollectiveSeconds(m, CollectiveKind::kAllReduce, 2e11, {16, 8}), 2 * 15.0 / 16, 1e-9);
  EXPECT_NEAR(CollectiveSeconds(m, CollectiveKind::kReduceScatter, 25e9, {2, 1}), 0.5, 1e-9);
  EXPECT_NEAR(CollectiveSeconds(m, CollectiveKind::kSend, 25e9, {2, 1}), 1.0, 1e-9);
  EXPECT_EQ(CollectiveSeconds(m, CollectiveKind::kAllReduce, 1e9, {1, 1}), 0);
  // Small messages over many nodes: a tree's steps grow with the logarithm.
  m.inter_latency_seconds = 1e-5;
  EXPECT_NEAR(CollectiveSeconds(m, CollectiveKind::kAllReduce, 0, {1024, 1}), 2 * 10 * 1e-5, 1e-12);
}

// What is sent of 1,200 bytes on three machines of four, by device.
TEST(Cluster, BytesGoByRingsOnGpusAndInTwoLevelsOnCpus) {
  Machine gpu = *FindMachine("a100-80g"), cpu = gpu;
  cpu.shares_cores = true;
  const auto sent = [](const Machine& machine, CollectiveKind kind, const GroupShape& group) {
    const LinkBytes bytes = BytesOverLinks(machine, kind, 1200, group);
    return std::pair(bytes.intra, bytes.inter);
  };
  const GroupShape both{12, 4}, inside{4, 4}, across{3, 1};
  for (const CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter}) {
    EXPECT_EQ(sent(gpu, kind, both), std::pair(825.0, 275.0));
    EXPECT_EQ(sent(cpu, kind, both), std::pair(900.0, 200.0));
    for (const Machine& machine : {gpu, cpu}) {
      EXPECT_EQ(sent(machine, kind, inside), std::pair(900.0, 0.0));
      EXPECT_EQ(sent(machine, kind, across), std::pair(0.0, 800.0));
    }
  }
  EXPECT_EQ(sent(gpu, CollectiveKind::kAllReduce, both), std::pair(1650.0, 550.0));
  EXPECT_EQ(sent(cpu, CollectiveKind::kAllReduce, both), std::pair(1800.0, 400.0));
  EXPECT_EQ(sent(cpu, CollectiveKind::kWholeAllReduce, both), std::pair(3600.0, 2400.0));
  EXPECT_EQ(sent(gpu, CollectiveKind::kAllToAll, both), std::pair(300.0, 800.0));
  EXPECT_EQ(sent(gpu, CollectiveKind::kRotate, both), std::pair(900.0, 300.0));
  EXPECT_EQ(sent(gpu, CollectiveKind::kAllGather, {1, 1}), std::pair(0.0, 0.0));
}

TEST(Cluster, OnACpuNothingHidesOfProductsByExpert) {
  DeviceProfile cpu;
  cpu.kind = "cpu";
  cpu.matmul_flops_per_second = {{DType::kF32, 1e9}, {DType::kBF16, 1e9}};
  cpu.memory_bytes_per_second = 1e6;
  const Machine m = MachineOf(cpu);
  // Of 4 experts with 64 rows of 10 and a matrix of 10 x 20 each.
  const double flops = 4 * 2.0 * 64 * 10 * 20, rows = 4 * 64 * (10 + 20), matrices = 4 * 10 * 20;
  const auto seconds = [&](DType dtype, const ProductShape& shape) {
    return KernelSeconds(m, dtype, flops, 5e3, shape);
  };
  EXPECT_NEAR(seconds(DType::kF32, {64, 20, 10}), 5e-3, 1e-9);
  EXPECT_NEAR(seconds(DType::kF32, {64, 20, 10, SlotsAre::kRows}), flops / 1e9 + 5e-3 + 2 * 4 * (rows + matrices) / 1e6,
              1e-9);
  EXPECT_NEAR(seconds(DType::kBF16, {64, 20, 10, SlotsAre::kRows}),
              flops * 1.25 / 1e9 + 5e-3 + 2 * 2 * (rows + matrices) / 1e6, 1e-9);
  // Gradients of weights are f32.
  EXPECT_NEAR(seconds(DType::kBF16, {10, 20, 64, SlotsAre::kDepth}),
              flops * 1.25 / 1e9 + 5e-3 + 2 * (2 * rows + 4 * matrices) / 1e6, 1e-9);
}

TEST(Cluster, SmallProductsAreSlower) {
  Machine m = *FindMachine("h100");
  const double large = KernelSeconds(m, DType::kBF16, 1e12, 0);
  EXPECT_NEAR(large, 1e12 / (989e12 * m.matmul_fraction), 1e-9);
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, 1e12, 0, {0, 0, m.matmul_depth}), 2 * large, 1e-9);
  // Memory comes beside it: 1 GB at 85 % of 3,350 GB/s.
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, 1e12, 1e9), large + 1 / (3350 * m.bandwidth_fraction), 1e-9);
  // Two whole waves of tiles, and a half, however the same result is cut; eight products of an eighth fill as many.
  m.matmul_depth = 0;
  const double depth = 4096, rows = 132 * 128, columns = 2 * 256, flops = 2 * rows * columns * depth;
  const double waves = KernelSeconds(m, DType::kBF16, flops, 0) * 1.25;
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, flops, 0, {rows, columns, depth}), waves, 1e-9 * waves);
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, flops, 0, {columns, rows, depth}), waves, 1e-9 * waves);
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, flops, 0, {rows / 8, columns, depth}), waves, 1e-9 * waves);
  // Of eight experts with 64 rows each as many tiles are half empty: rows count as 128.
  const double grouped = 2 * 512 * 4096 * depth;
  const double padded = KernelSeconds(m, DType::kBF16, 2 * grouped, 0, {128, 4096, depth});
  EXPECT_NEAR(KernelSeconds(m, DType::kBF16, grouped, 0, {64, 4096, depth, SlotsAre::kRows}), padded, 1e-9 * padded);
  // Issue binds, then the device.
  m.issue_seconds = 1e-5;
  EXPECT_NEAR(IssuedSeconds(m, 1e-6, 10), 1e-4, 1e-8);
  EXPECT_NEAR(IssuedSeconds(m, 1e-2, 10), 1e-2, 1e-6);
}

}  // namespace
}  // namespace tacc::graph
