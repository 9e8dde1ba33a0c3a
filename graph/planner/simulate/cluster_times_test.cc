#include "graph/planner/simulate/cluster_times.h"

#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "graph/analysis/cost.h"
#include "graph/planner/simulate/testing/test_program.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

DeviceProfile TestDevice() {
  DeviceProfile device;
  device.kind = "cpu";
  device.matmul_flops_per_second[DType::kF32] = 1e9;
  device.memory_bytes_per_second = 1e9;
  device.link_bytes_per_second = 1e8;
  return device;
}

Simulation MustSimulate(const Program& program, const Cluster& cluster, const OpTable& ops) {
  auto simulation = Simulate({&program}, TimesOn(cluster, {&program}, ops));
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.ok() ? *std::move(simulation) : Simulation();
}

TEST(TimesOn, WithoutOverlapASimulationIsTheRoofline) {
  const OpTable ops;
  for (int64_t fsdp : {1, 2, 4}) {
    const auto program = CompileTestProgram(ops, fsdp, /*prefetch_units=*/0);
    ASSERT_TRUE(program.ok()) << program.status();
    DeviceProfile device = TestDevice();
    device.kind = "other";  // shares no cores; nothing is known of it but the roofline's rates
    const StepCost cost = StepCostOf(*program, ops, device);
    const Simulation simulation = MustSimulate(*program, {MachineOf(device), 1}, ops);
    EXPECT_NEAR(simulation.step_seconds, cost.seconds(), 1e-9 * cost.seconds());
    EXPECT_NEAR(simulation.stages[0].compute_seconds, cost.compute_seconds, 1e-9 * cost.seconds());
    EXPECT_NEAR(simulation.stages[0].exposed_seconds, cost.communication_seconds, 1e-9 * cost.seconds());
  }
}

TEST(TimesOn, OnACpuAttentionIsSlowerThanProducts) {
  const OpTable ops;
  const auto program = CompileTestProgram(ops, 1, /*prefetch_units=*/0);
  ASSERT_TRUE(program.ok()) << program.status();
  DeviceProfile device = TestDevice();
  device.memory_bytes_per_second = 1e15;
  const NodeTimes times = TimesOn({MachineOf(device), 1}, {&*program}, ops);
  int num_attentions = 0;
  for (const Graph& graph : program->graphs) {
    for (const Node& node : graph.nodes) {
      if (node.op != "attention") continue;
      ++num_attentions;
      const double flops = ops.Find(node.op)->flops(CallOf(graph, node));
      EXPECT_NEAR(times(0, graph, node).seconds, flops / 0.55e9, 1e-9 * flops / 1e9);
    }
  }
  EXPECT_GT(num_attentions, 0);
}

TEST(TimesOn, OnAGpuAttentionTakesWhatTheProbeMeasured) {
  const OpTable ops;
  const auto program = CompileTestProgram(ops, 1, /*prefetch_units=*/0);
  ASSERT_TRUE(program.ok()) << program.status();
  DeviceProfile device = TestDevice();
  device.kind = "cuda";
  device.memory_bytes_per_second = 1e15;
  device.attention_flops_per_second = {{"tiles", 1e3}, {"flash", 4e3}};
  Machine machine = MachineOf(device);
  const NodeTimes times = TimesOn({machine, 1}, {&*program}, ops);
  int num_attentions = 0;
  for (const Graph& graph : program->graphs) {
    for (const Node& node : graph.nodes) {
      if (node.op != "attention" && node.op != "attention_grad") continue;
      ++num_attentions;
      const OpCall call = CallOf(graph, node);
      const double flops = ops.Find(node.op)->flops(call);
      EXPECT_EQ(MaskOfAttention(node.op, call), AttentionMask::kPlain);
      EXPECT_NEAR(times(0, graph, node).seconds, flops / (call.in(1).dtype == DType::kF32 ? 1e3 : 4e3), 1e-6 * flops);
    }
  }
  EXPECT_GT(num_attentions, 1);
}

// Scores are counted on presets, whose attention nobody measured: of each head 5 x 5, half of them behind the mask.
TEST(TimesOn, OnAPresetAttentionTakesItsExponentialsAndTheScoresOfAGradientTwice) {
  const OpTable ops;
  const Machine machine = *FindMachine("h100");
  const Attrs apart{{"causal", true}, {"scale", 1.0}}, joined{{"causal", true}, {"scale", 1.0}, {"group", int64_t{2}}};
  const TensorType q{DType::kBF16, {2, 5, 6, 4}}, k{DType::kBF16, {2, 5, 3, 4}}, qkv{DType::kBF16, {2, 5, 12, 4}};
  const TensorType lse{DType::kF32, {2, 6, 5}};
  const double flops = 2.0 * 2 * 6 * 5 * 5 * 4, scores = 2.0 * 6 * 5 * 5 / 2;
  const auto expect = [&](const char* op, const OpCall& call, double products, double repeated,
                          AttentionMask mask = AttentionMask::kPlain) {
    const AttentionExtras extras = ExtrasOfAttention(op, call, ops.Find(op)->flops(call));
    EXPECT_EQ(extras.exponentials, scores) << op;
    EXPECT_EQ(extras.repeated_flops, repeated) << op;
    Node node;
    node.op = op;
    const auto bytes = static_cast<double>(TouchedBytes(*ops.Find(op), call));
    EXPECT_EQ(
        LocalSeconds(machine, *ops.Find(op), node, call),
        IssuedSeconds(machine, AttentionSeconds(machine, DType::kBF16, mask, products, scores, bytes, repeated), 1))
        << op;
  };
  expect("attention", {&apart, {q, k, k}, {q, lse}}, flops, 0);
  expect("attention_joined", {&joined, {qkv}, {q, lse}}, flops, 0);
  expect("attention_grad", {&apart, {q, q, k, k, q, lse}, {q, k, k}}, 2 * flops, flops / 2);
  expect("attention_joined_grad", {&joined, {q, qkv, q, lse}, {qkv}}, 2 * flops, flops / 2);
  const Attrs biased{{"causal", true}, {"scale", 1.0}, {"bias", true}};
  const TensorType bias{DType::kF32, {1, 6, 5, 5}};
  expect("attention_bias_grad", {&biased, {q, q, k, k, q, lse, bias}, {bias}}, flops, 0, AttentionMask::kAny);
}

// Four experts have 12 of 48 slots each; a transposed matrix has its columns first.
TEST(TimesOn, ProductsByExpertHaveEachItsPartOfTheSlots) {
  const OpTable ops;
  const Machine machine = *FindMachine("h100");
  const TensorType x{DType::kBF16, {24, 16}}, ids{DType::kI32, {24, 2}}, w{DType::kBF16, {4, 40, 16}};
  const TensorType y{DType::kBF16, {24, 2, 40}}, sum{DType::kF32, {24, 16}}, dw{DType::kF32, {4, 40, 16}};
  const Attrs plain{{"num_experts", int64_t{4}}};
  const Attrs summed{{"num_experts", int64_t{4}}, {"transposed", true}, {"sum_slots", true}};
  const double flops = 2.0 * 48 * 16 * 40;
  const auto expect = [&](const char* op, const OpCall& call, const ProductShape& shape) {
    Node node;
    node.op = op;
    node.attrs = *call.attrs;
    const auto bytes = static_cast<double>(TouchedBytes(*ops.Find(op), call));
    EXPECT_EQ(LocalSeconds(machine, *ops.Find(op), node, call),
              IssuedSeconds(machine, KernelSeconds(machine, DType::kBF16, flops, bytes, shape), 1))
        << op;
  };
  expect("expert_matmul", {&plain, {x, ids, w}, {y}}, {12, 40, 16, SlotsAre::kRows});
  expect("expert_matmul", {&summed, {y, ids, w}, {sum}}, {12, 16, 40, SlotsAre::kRows});
  expect("expert_matmul_grad", {&plain, {y, x, ids}, {dw}}, {40, 16, 12, SlotsAre::kDepth});
}

TEST(MaskOfAttention, IsPlainWithoutDocumentsAlibiAndRings) {
  const TensorType operand{DType::kF32, {1, 8, 2, 4}}, narrow{DType::kF32, {1, 8, 2, 3}};
  const auto mask = [&](const Op& op, size_t num_operands, const Attrs& attrs) {
    OpCall call{&attrs, {}, {}};
    call.operands.assign(num_operands, operand);
    return MaskOfAttention(op, call);
  };
  const Attrs causal{{"causal", true}};
  EXPECT_EQ(mask("attention", 3, causal), AttentionMask::kPlain);
  EXPECT_EQ(mask("attention_grad", 6, causal), AttentionMask::kPlain);
  EXPECT_EQ(mask("attention", 3, {{"zigzag", int64_t{1}}}), AttentionMask::kPlain);
  EXPECT_EQ(mask("attention", 4, causal), AttentionMask::kAny);
  EXPECT_EQ(mask("attention_grad", 7, causal), AttentionMask::kAny);
  EXPECT_EQ(mask("attention", 3, {{"alibi_slopes", std::vector<double>{1, 2}}}), AttentionMask::kAny);
  EXPECT_EQ(mask("attention", 4, {{"sinks", true}}), AttentionMask::kAny);
  EXPECT_EQ(mask("attention", 4, {{"key_bias", true}}), AttentionMask::kAny);
  EXPECT_EQ(mask("attention", 4, {{"bias", true}}), AttentionMask::kAny);
  EXPECT_EQ(mask("attention", 3, {{"zigzag", int64_t{2}}}), AttentionMask::kAny);
  EXPECT_EQ(mask("attention", 3, {{"block", int64_t{8}}}), AttentionMask::kAny);
  EXPECT_EQ(mask("attention_continue", 5, {{"block", int64_t{8}}}), AttentionMask::kAny);
  EXPECT_FALSE(mask("einsum", 2, {}).has_value());
  // Values with a head dim of their own.
  EXPECT_EQ(MaskOfAttention("attention", OpCall{&causal, {operand, operand, narrow}, {}}), AttentionMask::kAny);
}

TEST(TimesOn, OnACpuOverlapHidesNothing) {
  const OpTable ops;
  const auto plain = CompileTestProgram(ops, 2, 0), overlapped = CompileTestProgram(ops, 2, 1);
  ASSERT_TRUE(plain.ok() && overlapped.ok());
  const Cluster cluster{MachineOf(TestDevice()), 1};
  const double seconds = MustSimulate(*plain, cluster, ops).step_seconds;
  EXPECT_NEAR(MustSimulate(*overlapped, cluster, ops).step_seconds, seconds, 1e-9 * seconds);
}

TEST(TimesOn, OnAGpuOverlapHidesCommunication) {
  const OpTable ops;
  const auto plain = CompileTestProgram(ops, 16, 0), overlapped = CompileTestProgram(ops, 16, 1);
  ASSERT_TRUE(plain.ok() && overlapped.ok());
  // Slow enough that the small model's compute can hide something.
  Machine machine = *FindMachine("h100");
  machine.memory_bytes_per_second = 1e8;
  const Cluster cluster{machine, 2};
  const Simulation exposed = MustSimulate(*plain, cluster, ops), hidden = MustSimulate(*overlapped, cluster, ops);
  EXPECT_NEAR(hidden.stages[0].compute_seconds, exposed.stages[0].compute_seconds, 1e-12);
  EXPECT_LT(hidden.stages[0].exposed_seconds, 0.9 * exposed.stages[0].exposed_seconds);
  EXPECT_GT(hidden.stages[0].communication_seconds, hidden.stages[0].exposed_seconds);
}

TEST(TimesOn, RanksThatShareTooFewProcessorsTakeTurns) {
  const OpTable ops;
  const auto program = CompileTestProgram(ops, 2, /*prefetch_units=*/0);
  ASSERT_TRUE(program.ok()) << program.status();
  DeviceProfile device = TestDevice();
  const StageTimes enough = MustSimulate(*program, {MachineOf(device), 1}, ops).stages[0];
  // An exchange sends and receives at once.
  for (const auto& [threads, cpus, slower, exchange_slower] : std::vector<std::tuple<int64_t, double, double, double>>{
           {1, 2, 1, 1}, {1, 1, 1, 2}, {2, 4, 1, 1}, {1, 0.5, 2, 4}, {2, 0.5, 4, 4}}) {
    device.threads = threads;
    device.cpus = cpus;
    const StageTimes times = MustSimulate(*program, {MachineOf(device), 1}, ops).stages[0];
    EXPECT_NEAR(times.compute_seconds, slower * enough.compute_seconds, 1e-9 * times.compute_seconds)
        << threads << " threads on " << cpus;
    EXPECT_NEAR(times.exposed_seconds, exchange_slower * enough.exposed_seconds, 1e-9 * times.exposed_seconds)
        << threads << " threads on " << cpus;
  }
}

// The time and the demands of an all-gather of 1 GB over the axis fsdp of a mesh with these axes.
NodeTime Gather(const Machine& machine, const std::vector<Mesh::Axis>& axes) {
  static const OpTable ops;
  Graph graph;
  Node node;
  node.op = Op::kAllGather;
  int64_t n = 1;
  for (const Mesh::Axis& axis : axes) n *= axis.name == "fsdp" ? axis.size : 1;
  node.operands = {graph.AddValue("part", {DType::kBF16, {500'000'000 / n}})};
  node.results = {graph.AddValue("whole", {DType::kBF16, {500'000'000}})};
  node.attrs = {{"dim", int64_t{0}}, {"over", std::vector<std::string>{"fsdp"}}};
  Program program;
  program.mesh = {axes};
  return TimesOn({machine, 16}, {&program}, ops)(0, graph, node);
}

TEST(TimesOn, ACollectiveTakesWhatItMoves) {
  Machine machine = *FindMachine("h100");
  machine.intra_latency_seconds = machine.inter_latency_seconds = 0;
  // Inside a node: the links are full, the network is not used.
  const NodeTime inside = Gather(machine, {{"dp", 16}, {"fsdp", 8}});
  EXPECT_NEAR(inside.seconds, 1e9 * 7 / 8 / (450e9 * machine.bandwidth_fraction), 1e-9);
  EXPECT_NEAR(inside.link, 1, 1e-9);
  EXPECT_EQ(inside.network, 0);
  EXPECT_EQ(inside.device, 0);
  EXPECT_EQ(inside.communicator, "fsdp");
  // One rank a node: its share of the network is full, the links are free.
  const NodeTime across = Gather(machine, {{"fsdp", 16}, {"tp", 8}});
  EXPECT_NEAR(across.seconds, 1e9 * 15 / 16 / (50e9 * machine.bandwidth_fraction), 1e-9);
  EXPECT_EQ(across.link, 0);
  EXPECT_NEAR(across.network, 1, 1e-9);
  // Eight ranks a node, on 16 nodes: 8 x 50 GB/s go out, and through the links what does not go out at each.
  const NodeTime both = Gather(machine, {{"fsdp", 128}});
  EXPECT_NEAR(both.network, 1, 1e-9);
  EXPECT_NEAR(both.link, 400.0 / 450 * 7 / 8, 1e-9);
}

// Parts are summed in the type of the summands, and gathered in that of the sum: three halves of a narrow one.
TEST(TimesOn, ASumThatWidensIsGatheredWide) {
  const OpTable ops;
  const auto sum = [&ops](DType in, DType out) {
    Graph graph;
    Node node;
    node.op = Op::kAllReduce;
    node.operands = {graph.AddValue("in", {in, {100'000'000}})};
    node.results = {graph.AddValue("out", {out, {100'000'000}})};
    node.attrs = {{"over", std::vector<std::string>{"dp"}}};
    Program program;
    program.mesh = {{{"dp", 8}}};
    Machine machine = *FindMachine("h100");
    machine.intra_latency_seconds = 0;
    const NodeTime time = TimesOn({machine, 1}, {&program}, ops)(0, graph, node);
    EXPECT_EQ(time.sent_bytes, SentBytes(graph, node, program.mesh));
    return time.seconds;
  };
  const double narrow = sum(DType::kBF16, DType::kBF16);
  EXPECT_NEAR(sum(DType::kBF16, DType::kF32), 1.5 * narrow, 1e-9);
  EXPECT_NEAR(sum(DType::kF32, DType::kF32), 2 * narrow, 1e-9);
}

// Weights whose heads' dims lie before the one that fsdp cuts are packed: twice through memory, where the collective
// runs.
TEST(TimesOn, CopiesAroundACollectiveTakeTheirTime) {
  const OpTable ops;
  Machine gpu = *FindMachine("h100"), in_order = gpu, cpu = gpu;
  in_order.sums_in_order = true;
  cpu.shares_cores = true;
  const Mesh mesh{{{"fsdp", 8}}};
  // [heads, head_dim, hidden], cut along hidden in `heads` rows and some; `out` of a sum.
  const auto copies = [&](const Machine& machine, const char* op, int64_t heads, int64_t hidden, DType out) {
    const Dims global{heads, 1, hidden}, local{heads, 1, (hidden + 7) / 8};
    const TensorType whole{DType::kBF16, global}, part{out, local};
    Graph graph;
    Node node;
    node.op = op;
    const bool gathers = node.op == Op::kAllGather;
    node.operands = {graph.AddValue("in", gathers ? part : whole)};
    node.results = {graph.AddValue("out", gathers ? whole : part)};
    node.attrs = {{"over", std::vector<std::string>{"fsdp"}}, {"dim", int64_t{2}}};
    const ValueId shard = gathers ? node.operands[0] : node.results[0];
    const ValueId other = gathers ? node.results[0] : node.operands[0];
    graph.values[other].placement = Placement{whole, Sharding::Replicated(3)};
    graph.values[shard].placement = Placement{{out, global}, {{{}, {}, {0}}, {}}};
    Program program;
    program.mesh = mesh;
    const auto bytes = static_cast<double>(whole.bytes());
    const CollectiveKind kind = gathers ? CollectiveKind::kAllGather : CollectiveKind::kReduceScatter;
    Machine sums = machine;
    sums.sums_in_order = machine.sums_in_order || (!gathers && out != DType::kBF16 && !machine.shares_cores);
    const double seconds = TimesOn({machine, 1}, {&program}, ops)(0, graph, node).seconds;
    const double copied = (seconds - CollectiveSeconds(sums, kind, bytes, {8, 8})) / bytes *
                          (machine.memory_bytes_per_second * machine.bandwidth_fraction);
    return std::round(100 * copied) / 100;  // passes through memory, but what padding of a dim sends
  };
  const DType half = DType::kBF16, wide = DType::kF32;
  EXPECT_EQ(copies(gpu, "all_gather", 64, 65536, half), 0);
  EXPECT_EQ(copies(gpu, "all_gather", 128, 65536, half), 2);
  EXPECT_EQ(copies(gpu, "all_gather", 1, 65537, half), 2);
  EXPECT_EQ(copies(gpu, "reduce_scatter", 64, 65536, half), 0);
  EXPECT_EQ(copies(gpu, "reduce_scatter", 128, 65536, half), 2.25);
  EXPECT_EQ(copies(gpu, "reduce_scatter", 2, 65536, wide), 2);  // its own
  EXPECT_EQ(copies(in_order, "reduce_scatter", 2, 65536, half), 2);
  EXPECT_EQ(copies(in_order, "reduce_scatter", 1, 65537, half), 0);
  EXPECT_EQ(copies(cpu, "all_gather", 2, 65536, half), 2);
  EXPECT_EQ(copies(cpu, "all_gather", 1, 65537, half), 0);
}

TEST(TimesOn, AMessageTakesTheWayBetweenItsStages) {
  // Four stages of four ranks on nodes of eight: stages 0 and 1 share a node, 1 and 2 do not.
  const OpTable ops;
  Machine machine = *FindMachine("h100");
  machine.intra_latency_seconds = machine.inter_latency_seconds = 0;
  Program program;
  program.mesh = {{{"pp", 4}, {"dp", 4}}};
  program.states.emplace_back();
  program.states[0].name = "stash/h";
  program.states[0].type = {DType::kBF16, {50'000'000}};
  const NodeTimes times = TimesOn({machine, 2}, {&program, &program, &program, &program}, ops);
  Graph graph;
  Node send;
  send.op = Op::kSend;
  send.symbol = "stash/h";
  send.attrs = {{"channel", int64_t{3}}, {"to", int64_t{1}}};
  const NodeTime inside = times(0, graph, send);
  EXPECT_NEAR(inside.seconds, 1e8 / (450e9 * machine.bandwidth_fraction), 1e-12);
  EXPECT_EQ(inside.meeting, "channel 3");
  EXPECT_EQ(inside.parties, 2);
  EXPECT_EQ(inside.sent_bytes, 100'000'000);
  EXPECT_NEAR(inside.link, 1, 1e-9);
  EXPECT_EQ(inside.network, 0);
  Node recv = send;
  recv.op = Op::kRecv;
  recv.attrs = {{"channel", int64_t{3}}, {"from", int64_t{1}}};
  const NodeTime across = times(2, graph, recv);
  EXPECT_NEAR(across.seconds, 1e8 / (50e9 * machine.bandwidth_fraction), 1e-12);
  EXPECT_EQ(across.meeting, inside.meeting);
  EXPECT_EQ(across.sent_bytes, 0);
  EXPECT_NEAR(across.network, 1, 1e-9);
}

TEST(TimesOn, ASumOverStagesIsNoLocalWork) {
  const OpTable ops;
  Program program;
  program.mesh = {{{"pp", 2}, {"dp", 4}}};
  Graph graph;
  Node sum;
  sum.op = Op::kStageSum;
  sum.operands = {graph.AddValue("loss", {DType::kF32, {}})};
  sum.results = {graph.AddValue("total", {DType::kF32, {}})};
  sum.attrs = {{"stages", std::vector<int64_t>{0, 1}}};
  const NodeTime time = TimesOn({*FindMachine("h100"), 1}, {&program, &program}, ops)(0, graph, sum);
  EXPECT_EQ(time.meeting, "stage_sum of stages 0 1");
  EXPECT_EQ(time.parties, 2);
  EXPECT_EQ(time.communicator, kStageAxis);
}

TEST(TimesOn, StagesMayLieInsideANode) {
  // Four stages as neighbours on nodes of eight: their messages and sums stay there.
  const OpTable ops;
  Machine machine = *FindMachine("h100");
  Program program;
  program.mesh = {{{"dp", 4}, {"pp", 4}}};
  program.states.emplace_back();
  program.states[0].name = "stash/h";
  program.states[0].type = {DType::kBF16, {50'000'000}};
  const NodeTimes times = TimesOn({machine, 2}, {&program, &program, &program, &program}, ops);
  Graph graph;
  Node send;
  send.op = Op::kSend;
  send.symbol = "stash/h";
  send.attrs = {{"channel", int64_t{3}}, {"to", int64_t{2}}};
  EXPECT_EQ(times(1, graph, send).network, 0);
  Node sum;
  sum.op = Op::kStageSum;
  sum.attrs = {{"stages", std::vector<int64_t>{0, 1, 2, 3}}};
  sum.operands = {graph.AddValue("x", {DType::kF32, {1000}})};
  sum.results = {graph.AddValue("y", {DType::kF32, {1000}})};
  const NodeTime time = times(1, graph, sum);
  EXPECT_EQ(time.network, 0);
  EXPECT_EQ(time.communicator, "pp");
  EXPECT_EQ(time.parties, 4);
}

}  // namespace
}  // namespace tacc::graph
