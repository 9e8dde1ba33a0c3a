#include "graph/planner/simulate/simulate.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/planner/simulate/testing/test_program.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

// A program whose only graph, `g`, is called once for each micro-batch.
Program TestProgram(const std::string& nodes, int micro_batches = 1) {
  std::string text =
      absl::StrCat("tacc.program 1 scheduled\nmesh fsdp=2\nstage 0 of 1\ngraph g {\n", nodes, "}\nstep {\n");
  for (int m = 0; m < micro_batches; ++m) absl::StrAppend(&text, "  call g micro_batch=", m, "\n");
  auto program = ParseProgram(text + "}\n", {});
  EXPECT_TRUE(program.ok()) << program.status();
  return program.ok() ? *std::move(program) : Program();
}

constexpr char kType[] = " : f32[4] of f32[4] shard=[-]";

// A line `%name = op args : type @module`.
std::string Line(const std::string& text, const std::string& module) {
  return absl::StrCat("  ", text, kType, module.empty() ? "" : " @", module, "\n");
}

// Seconds of nodes as their module says: "s2" takes 2 s, "" none; "s2.a" is a transfer to be met under the name "a".
NodeTime FromModule(const Node& node) {
  NodeTime time;
  if (node.module.empty()) return time;
  const std::vector<std::string> parts = absl::StrSplit(node.module.substr(1), '.');
  EXPECT_TRUE(absl::SimpleAtod(parts[0], &time.seconds)) << node.module;
  const bool is_collective = node.op == Op::kAllGather || node.op == Op::kAllReduce;
  if (is_collective) time.communicator = parts.size() > 1 ? parts[1] : std::string(node.op.name());
  if (parts.size() > 1) {
    time.meeting = parts[1];
    time.parties = 2;
  }
  if (!is_collective) time.device = 1;
  return time;
}
NodeTimes ByModule() {
  return [](int, const Graph&, const Node& node) { return FromModule(node); };
}

Simulation MustSimulate(const std::vector<const Program*>& stages, const NodeTimes& times) {
  auto simulation = Simulate(stages, times);
  EXPECT_TRUE(simulation.ok()) << simulation.status();
  return simulation.ok() ? *std::move(simulation) : Simulation();
}

void ExpectConserved(const Simulation& simulation) {
  for (const StageTimes& stage : simulation.stages) {
    EXPECT_NEAR(stage.compute_seconds + stage.exposed_seconds + stage.idle_seconds, simulation.step_seconds,
                1e-9 * simulation.step_seconds);
    EXPECT_LE(stage.exposed_seconds, stage.communication_seconds * (1 + 1e-9));
    EXPECT_LE(stage.communication_seconds, simulation.step_seconds * (1 + 1e-9));
  }
}

TEST(Simulate, WithoutOverlapTimesAddUp) {
  const Program program = TestProgram(Line("%x = input \"x\"", "") + Line("%a = exp %x", "s1") +
                                      Line("%b = all_gather %a", "s2") + Line("%c = exp %b", "s3"));
  const Simulation simulation = MustSimulate({&program}, ByModule());
  EXPECT_EQ(simulation.step_seconds, 6);
  EXPECT_EQ(simulation.stages[0].compute_seconds, 4);
  EXPECT_EQ(simulation.stages[0].communication_seconds, 2);
  EXPECT_EQ(simulation.stages[0].exposed_seconds, 2);
  ASSERT_EQ(simulation.timeline.size(), 3u);
  EXPECT_EQ(simulation.timeline[1].lane, Lane::kCommunication);
  EXPECT_EQ(simulation.timeline[1].begin, 1);
  EXPECT_EQ(simulation.timeline[1].exposed, 2);
  EXPECT_EQ(simulation.timeline[2].begin, 3);
  ExpectConserved(simulation);
}

TEST(Simulate, AsynchronousCollectivesHide) {
  const auto simulate = [](const std::string& gather, const std::string& compute) {
    const Program program =
        TestProgram(Line("%x = input \"x\"", "") + Line("%g = all_gather %x async=true", gather) +
                    Line("%a = exp %x", compute) + Line("%w = wait %g", "") + Line("%c = exp %w", "s1"));
    return MustSimulate({&program}, ByModule());
  };
  const Simulation hidden = simulate("s2", "s3");
  EXPECT_EQ(hidden.step_seconds, 4);
  EXPECT_EQ(hidden.stages[0].exposed_seconds, 0);
  EXPECT_EQ(hidden.stages[0].communication_seconds, 2);
  const Simulation half = simulate("s5", "s3");
  EXPECT_EQ(half.step_seconds, 6);
  EXPECT_EQ(half.stages[0].exposed_seconds, 2);
  EXPECT_EQ(half.timeline[0].exposed, 2);
  ExpectConserved(half);
}

TEST(Simulate, CollectivesOfOneCommunicatorQueue) {
  const auto simulate = [](const std::string& second) {
    const Program program =
        TestProgram(Line("%x = input \"x\"", "") + Line("%g = all_gather %x async=true", "s2") +
                    Line(absl::StrCat("%h = ", second, " %x async=true"), "s2") + Line("%v = wait %g", "") +
                    Line("%w = wait %h", "") + Line("%c = add %v, %w", "s1"));
    return MustSimulate({&program}, ByModule()).step_seconds;
  };
  EXPECT_EQ(simulate("all_gather"), 5);
  EXPECT_EQ(simulate("all_reduce"), 3);  // another communicator
}

TEST(Simulate, StagesThatShareProcessorsTakeTurnsOnlyWhileBothCompute) {
  const Program slow = TestProgram(Line("%x = input \"x\"", "") + Line("%a = exp %x", "s4"));
  const Program quick = TestProgram(Line("%x = input \"x\"", "") + Line("%a = exp %x", "s1"));
  const auto simulate = [&](double host) {
    return MustSimulate({&slow, &quick}, [host](int, const Graph&, const Node& node) {
      NodeTime time = FromModule(node);
      time.host = host;
      return time;
    });
  };
  EXPECT_DOUBLE_EQ(simulate(0.5).step_seconds, 4);
  // Half speed for both while the quick one lasts, 2 s; then 3 s of the slow one are left.
  EXPECT_DOUBLE_EQ(simulate(1).step_seconds, 5);
  EXPECT_DOUBLE_EQ(simulate(2).step_seconds, 10);
}

TEST(Simulate, WhatSharesTheDeviceIsSlowed) {
  // A CPU's collective takes the core that computes: 3 s of compute and 2 s of transfer are 5 s however they lie.
  const Program program = TestProgram(Line("%x = input \"x\"", "") + Line("%g = all_gather %x async=true", "s2") +
                                      Line("%a = exp %x", "s3") + Line("%w = wait %g", "") + Line("%c = exp %w", "s1"));
  const Simulation simulation = MustSimulate({&program}, [](int, const Graph&, const Node& node) {
    NodeTime time = FromModule(node);
    time.device = 1;
    return time;
  });
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 6);
  EXPECT_DOUBLE_EQ(simulation.stages[0].contention_seconds, 2);
  EXPECT_DOUBLE_EQ(simulation.stages[0].exposed_seconds, 0);
  ExpectConserved(simulation);
}

TEST(Simulate, CommunicatorsShareTheNetwork) {
  // Two collectives at once over one adapter: 2 s each when it is enough for both, 4 s when each fills it.
  const auto step_seconds = [&](double network) {
    const Program program = TestProgram(Line("%x = input \"x\"", "") + Line("%g = all_gather %x async=true", "s2") +
                                        Line("%h = all_reduce %x", "s2") + Line("%w = wait %g", ""));
    return MustSimulate({&program},
                        [&](int, const Graph&, const Node& node) {
                          NodeTime time = FromModule(node);
                          time.network = network;
                          return time;
                        })
        .step_seconds;
  };
  EXPECT_DOUBLE_EQ(step_seconds(1), 4);
  EXPECT_DOUBLE_EQ(step_seconds(0.75), 3);
  EXPECT_DOUBLE_EQ(step_seconds(0.5), 2);
}

TEST(Simulate, APipelineHasItsBubble) {
  // Four stages pass M micro-batches on, each takes 1 s in each: M + 3 s in all, 3 s idle in each stage.
  constexpr int kStages = 4, kMicroBatches = 8;
  std::vector<Program> programs;
  for (int s = 0; s < kStages; ++s) {
    const auto transfer = [](int from, const char* line) {
      return Line(line, absl::StrCat("s0.", from, "to", from + 1));
    };
    std::string nodes = Line("%x = input \"x\"", "");
    if (s > 0) nodes += transfer(s - 1, "%r = all_gather %x");
    nodes += Line("%a = exp %x", "s1");
    if (s + 1 < kStages) nodes += transfer(s, "%t = all_gather %a");
    programs.push_back(TestProgram(nodes, kMicroBatches));
  }
  std::vector<const Program*> stages;
  for (const Program& program : programs) stages.push_back(&program);
  const Simulation simulation = MustSimulate(stages, ByModule());
  EXPECT_DOUBLE_EQ(simulation.step_seconds, kMicroBatches + kStages - 1);
  for (const StageTimes& stage : simulation.stages) {
    EXPECT_DOUBLE_EQ(stage.compute_seconds, kMicroBatches);
    EXPECT_DOUBLE_EQ(stage.idle_seconds, kStages - 1);
  }
  ExpectConserved(simulation);
}

TEST(Simulate, MessagesRunBesideComputeToTheirFinish) {
  // Stage 0 sends after 1 s of work and goes on for 3 s; stage 1 posted its receive at once, works 2 s, and needs the
  // message, 4 s long, at 5 s.
  const std::string x = Line("%x = input \"x\"", "");
  const auto message = [](const std::string& op) { return absl::StrCat("  ", op, " @s4.m\n"); };
  const Program left = TestProgram(x + Line("%a = exp %x", "s1") + message("send \"stash/h\" to=1 channel=0") +
                                   Line("%b = exp %a", "s3") + message("finish \"stash/h\" channel=0"));
  const Program right = TestProgram(x + message("recv \"stash/h\" from=0 channel=0") + Line("%a = exp %x", "s2") +
                                    message("finish \"stash/h\" channel=0") + Line("%b = exp %a", "s1"));
  const Simulation simulation = MustSimulate({&left, &right}, [](int, const Graph&, const Node& node) {
    NodeTime time = FromModule(node);
    if (node.op == Op::kSend || node.op == Op::kRecv) {
      time.communicator = "m";
      time.device = 0;
    }
    return time;
  });
  EXPECT_DOUBLE_EQ(simulation.step_seconds, 6);
  EXPECT_DOUBLE_EQ(simulation.stages[0].compute_seconds, 4);
  EXPECT_DOUBLE_EQ(simulation.stages[1].compute_seconds, 3);
  EXPECT_DOUBLE_EQ(simulation.stages[1].exposed_seconds, 3);  // from 2 s to 5 s
  ExpectConserved(simulation);
}

TEST(Simulate, FindsStagesThatWaitInACircle) {
  const std::string x = Line("%x = input \"x\"", "");
  const Program left = TestProgram(x + Line("%a = all_gather %x", "s1.a") + Line("%b = all_gather %x", "s1.b"));
  const Program right = TestProgram(x + Line("%b = all_gather %x", "s1.b") + Line("%a = all_gather %x", "s1.a"));
  const Program alone = TestProgram(x + Line("%a = all_gather %x", "s1.a"));
  EXPECT_EQ(
      Simulate({&left, &right}, ByModule()).status().message(),
      "the stages wait for each other in a circle: stage 0 at g of micro-batch 0, node 1 (all_gather), stage 1 at "
      "g of micro-batch 0, node 1 (all_gather)");
  EXPECT_EQ(Simulate({&left, &alone}, ByModule()).status().message(),
            "the stages do not meet: 1 of them never come to b number 0");
}

TEST(Simulate, SpansSplitIntoTheirNodes) {
  const Program program =
      TestProgram(Line("%x = input \"x\"", "") + Line("%a = exp %x", "s1") + Line("%b = exp %a", "s3"));
  const Simulation simulation = MustSimulate({&program}, ByModule());
  ASSERT_EQ(simulation.timeline.size(), 1u);
  const std::vector<Span> nodes = SplitByNode(simulation.timeline[0], program.graphs[0], ByModule());
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes[0].end, 0);
  EXPECT_EQ(nodes[1].begin, 0);
  EXPECT_EQ(nodes[1].end, 1);
  EXPECT_EQ(nodes[2].first_node, 2);
  EXPECT_EQ(nodes[2].end, 4);
}

TEST(Simulate, MemoryStaysInThePlan) {
  const OpTable ops;
  const auto compiled = CompileTestProgram(ops, 2, 1);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const Program& program = *compiled;
  const NodeTimes times = [](int, const Graph&, const Node& node) {
    NodeTime time;
    time.seconds = node.symbol.empty() ? 1 : 0;
    if (node.op == Op::kAllGather || node.op == Op::kReduceScatter || node.op == Op::kAllReduce)
      time.communicator = "one";
    return time;
  };
  const Simulation simulation = MustSimulate({&program}, times);
  ExpectConserved(simulation);
  const std::vector<MemoryPoint> points = MemoryOverTime(simulation, program, 0, times);
  int64_t peak = 0, before = 0;
  double time = 0;
  for (const MemoryPoint& point : points) {
    EXPECT_GE(point.seconds, time);
    EXPECT_NE(point.bytes, before);
    time = point.seconds;
    before = point.bytes;
    peak = std::max(peak, point.bytes);
  }
  EXPECT_EQ(points.back().seconds, simulation.step_seconds);
  // Greedy placement leaves gaps: the plan's arena is a little larger than what is ever live.
  const int64_t planned = program.arena_bytes + program.workspace_bytes;
  EXPECT_LE(peak, planned);
  EXPECT_GE(static_cast<double>(peak), 0.85 * static_cast<double>(planned));
}

}  // namespace
}  // namespace tacc::graph
