#include "graph/planner/simulate/trace.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "graph/planner/simulate/cluster_times.h"
#include "graph/planner/simulate/test_program.h"
#include "gtest/gtest.h"

namespace tacc::graph {
namespace {

using nlohmann::json;

struct Slice {
  double begin, end;
  std::string category;
};

TEST(Trace, SlicesNestAndSumToTheSimulation) {
  const OpTable ops;
  const auto program = CompileTestProgram(ops, 16, 1);
  ASSERT_TRUE(program.ok()) << program.status();
  const NodeTimes times = TimesOn({*FindMachine("h100"), 2}, {&*program}, ops);
  const auto simulation = Simulate({&*program}, times);
  ASSERT_TRUE(simulation.ok()) << simulation.status();
  const json trace =
      json::parse(TraceJson(*simulation, {&*program}, {"16 ranks"}, times), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(trace.is_object());

  std::map<int, std::vector<Slice>> threads;
  std::map<int, std::string> thread_names;
  std::map<std::string, double> sums;  // seconds, by category
  int64_t peak_bytes = 0;
  for (const json& event : trace["traceEvents"]) {
    const std::string phase = event["ph"];
    if (phase == "M" && event["name"] == "process_name") {
      EXPECT_EQ(event["args"]["name"], "16 ranks");
    }
    if (phase == "M" && event["name"] == "thread_name") thread_names[event["tid"]] = event["args"]["name"];
    if (phase == "C") peak_bytes = std::max(peak_bytes, event["args"]["bytes"].get<int64_t>());
    if (phase != "X") continue;
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    threads[event["tid"]].push_back({begin, end, event["cat"]});
    sums[event["cat"]] += (end - begin) * 1e-6;
    EXPECT_LE(end, simulation->step_seconds * 1e6 + 0.001);
  }
  EXPECT_EQ(thread_names[0], "compute");
  EXPECT_EQ(thread_names[1], "communication fsdp");
  EXPECT_GT(peak_bytes, 0);
  EXPECT_LE(peak_bytes, program->arena_bytes + program->workspace_bytes);

  // On each thread every two slices are apart or one in the other: call, module, node from the outside in.
  constexpr double kRounding = 0.0005;  // microseconds
  const std::map<std::string, int> depth = {{"call", 0}, {"module", 1}, {"node", 2}, {"collective", 0}};
  for (auto& [thread, slices] : threads) {
    std::stable_sort(slices.begin(), slices.end(), [&](const Slice& a, const Slice& b) {
      return a.begin != b.begin ? a.begin < b.begin : depth.at(a.category) < depth.at(b.category);
    });
    std::vector<Slice> open;
    for (const Slice& slice : slices) {
      while (!open.empty() && open.back().end <= slice.begin + kRounding) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(slice.end, open.back().end + kRounding);
        EXPECT_GT(depth.at(slice.category), depth.at(open.back().category));
      }
      open.push_back(slice);
    }
  }
  const double rounding = 1e-9 * static_cast<double>(threads[0].size());
  EXPECT_NEAR(sums["node"], simulation->stages[0].compute_seconds, rounding);
  EXPECT_NEAR(sums["collective"], simulation->stages[0].communication_seconds, rounding);
  EXPECT_LE(sums["call"], simulation->step_seconds + rounding);
}

}  // namespace
}  // namespace tacc::graph
