#include "graph/planner/simulate/trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "gmock/gmock.h"
#include "graph/analysis/cost.h"
#include "graph/planner/simulate/cluster_times.h"
#include "graph/planner/simulate/testing/test_program.h"
#include "graph/trace/testing/trace_slices.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

TEST(Trace, SlicesNestAndSumToTheSimulation) {
  const OpTable ops;
  const auto program = CompileTestProgram(ops, 16, 1);
  ASSERT_TRUE(program.ok()) << program.status();
  const NodeTimes times = TimesOn({*FindMachine("h100"), 2}, {&*program}, ops);
  const auto simulation = Simulate({&*program}, times);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const std::string text = TraceJson(*simulation, {&*program}, {"16 ranks"}, times, ops);

  std::set<std::string> threads;
  std::map<std::string, double> sums;  // seconds, by category
  std::vector<std::string> phases;
  int64_t sent_bytes = 0, num_compute = 0;
  const std::vector<TraceSlice> slices = SlicesOf(text);
  for (const TraceSlice& slice : slices) {
    EXPECT_EQ(slice.process, 0);
    threads.insert(slice.thread);
    sums[slice.category] += (slice.end - slice.begin) * 1e-6;
    num_compute += slice.thread == "compute" ? 1 : 0;
    if (slice.category == "phase") phases.push_back(slice.name);
    if (slice.category == "node" && slice.name == "einsum") {
      EXPECT_GT(slice.arguments["flops"].get<double>(), 0);
      EXPECT_GT(slice.arguments["bytes"].get<int64_t>(), 0);
    }
    if (slice.category == "collective") sent_bytes += slice.arguments.value("sent_bytes", int64_t{0});
    EXPECT_LE(slice.end, simulation->step_seconds * 1e6 + 0.001);
  }
  EXPECT_THAT(threads, testing::ElementsAre("communication fsdp", "compute"));
  EXPECT_THAT(phases, testing::ElementsAre("forward", "backward", "forward", "backward"));  // two micro-batches
  EXPECT_EQ(sent_bytes, StepCostOf(*program, ops, DeviceProfile()).sent_bytes);
  EXPECT_EQ(WhatOverlaps(slices), "");
  const double rounding = 1e-9 * static_cast<double>(num_compute);
  EXPECT_NEAR(sums["node"], simulation->stages[0].compute_seconds, rounding);
  EXPECT_NEAR(sums["collective"], simulation->stages[0].communication_seconds, rounding);
  EXPECT_LE(sums["call"], simulation->step_seconds + rounding);

  int64_t peak_bytes = 0;
  const json trace = json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "16 ranks");
    }
    if (event["ph"] == "C") peak_bytes = std::max(peak_bytes, event["args"]["bytes"].get<int64_t>());
  }
  EXPECT_GT(peak_bytes, 0);
  EXPECT_LE(peak_bytes, program->arena_bytes + program->workspace_bytes);
}

}  // namespace
}  // namespace tacc::graph
