#include "worker/rank/timing/rank_trace.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/trace/step_trace.h"
#include "graph/trace/testing/trace_slices.h"
#include "gtest/gtest.h"
#include "machine/testing/test_directory.h"
#include "worker/rank/testing/in_process_transport.h"

namespace tacc::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Role = StepTimes::Role;

constexpr char kProgram[] = R"(tacc.program 1 partitioned
mesh fsdp=2
stage 0 of 1
state "weights/w" : f32[2] of f32[4] shard=[fsdp] kind=weight init=ones stored=[4]
state "counters/loss" : f32[] of f32[] shard=[] kind=counter init=zeros
graph forward_backward {
  %w = read "weights/w" : f32[2] of f32[4] shard=[fsdp]
  %s = all_gather %w async=true dim=0 over=[fsdp] : f32[4] of f32[4] shard=[-] @layer
  %x = input "x" : f32[4] of f32[4] shard=[-]
  %g = wait %s : f32[4] of f32[4] shard=[-] @layer
  %y = mul %g, %x : f32[4] of f32[4] shard=[-] @layer
  %l = reduce_sum %y dims=[0] : f32[] of f32[] shard=[] @loss
  store "counters/loss" %l
  %d = neg %y : f32[4] of f32[4] shard=[-] @layer
}
step {
  call forward_backward micro_batch=0
}
)";

graph::Program Parse() {
  auto program = graph::ParseProgram(kProgram, {});
  EXPECT_TRUE(program.ok()) << program.status();
  return *std::move(program);
}

// A step that starts at `begin` and takes 80 us.
StepTimes Times(double begin) {
  const auto us = [begin](double at) { return begin + at * 1e-6; };
  StepTimes times;
  times.instructions = {{0, 1, Role::kStarts, us(0), us(2)},     {0, 2, Role::kComputes, us(2), us(4)},
                        {0, 3, Role::kWaits, us(4), us(30)},     {0, 4, Role::kComputes, us(30), us(50)},
                        {0, 5, Role::kComputes, us(50), us(60)}, {0, 7, Role::kComputes, us(70), us(80)}};
  times.collectives = {{us(1), us(25), 8}};
  return times;
}

// The same where its collectives are queued on a device; the batch is copied from 9 us before.
StepTimes OnDevice(StepTimes times) {
  using Direction = StepTimes::Copy::Direction;
  times.collectives_on_device = true;
  const double begin = times.instructions.front().begin, end = times.instructions.back().end;
  times.copies = {{Direction::kToDevice, "x document_start", 128, begin - 9e-6, begin + 2e-6},
                  {Direction::kToHost, "loss", 8, end, end + 1e-6}};
  return times;
}

// "thread category name: from to", in whole microseconds, of one process.
std::vector<std::string> Rows(const std::string& text, int process) {
  std::vector<std::string> rows;
  for (const graph::TraceSlice& slice : graph::SlicesOf(text)) {
    if (slice.process != process) continue;
    rows.push_back(absl::StrCat(slice.thread, " ", slice.category, " ", slice.name, ": ", std::lround(slice.begin), " ",
                                std::lround(slice.end)));
  }
  return rows;
}

TEST(MeasuredProcess, ShowsInstructionsByModuleAndCollectivesByCommunicator) {
  const graph::Program program = Parse();
  const graph::OpTable ops;
  const std::string text = graph::TraceText({MeasuredProcess(program, ops, 1, Times(100), 100)});
  EXPECT_THAT(Rows(text, 1),
              ElementsAre("communication all collective all_gather: 1 25", "compute call forward_backward 0: 2 80",
                          "compute phase forward: 2 60", "compute phase backward: 70 80", "compute node input: 2 4",
                          "compute module layer: 30 50", "compute node mul: 30 50", "compute module loss: 50 60",
                          "compute node reduce_sum: 50 60", "compute module layer: 70 80", "compute node neg: 70 80"));
  for (const graph::TraceSlice& slice : graph::SlicesOf(text)) {
    if (slice.name == "all_gather") {
      EXPECT_NEAR(slice.arguments["exposed_us"].get<double>(), 26, 0.1);
      EXPECT_EQ(slice.arguments["sent_bytes"], 8);
      EXPECT_EQ(slice.arguments["module"], "layer");
    }
    if (slice.name == "mul") {
      EXPECT_EQ(slice.arguments["bytes"], 48);
      EXPECT_EQ(slice.arguments["result"], "%y f32[4]");
    }
  }
}

constexpr char kSends[] = R"(tacc.program 1 partitioned
mesh pp=2
stage 0 of 2
state "stashes/a" : f32[4] of f32[4] shard=[-] kind=stash init=zeros slots=3
graph forward {
  %x = input "x" : f32[4] of f32[4] shard=[-]
  store "stashes/a" %x
  send "stashes/a" channel=0 to=1
}
graph finish_forward {
  finish "stashes/a" channel=0
}
step {
  call forward micro_batch=0
  call forward micro_batch=1
  call forward micro_batch=2
  call finish_forward micro_batch=0
  call finish_forward micro_batch=1
  call finish_forward micro_batch=2
}
)";

// On a CPU: the first has ended long before the rank waits for it; for the second it stands still, so the third can
// only follow.
TEST(MeasuredProcess, MessagesOfAChannelFollowEachOther) {
  auto program = graph::ParseProgram(kSends, {});
  ASSERT_TRUE(program.ok()) << program.status();
  const graph::OpTable ops;
  const auto us = [](double at) { return 100 + at * 1e-6; };
  StepTimes times;
  for (int i = 0; i < 3; ++i) times.instructions.push_back({i, 2, Role::kStarts, us(10 * i), us(10 * i + 1)});
  times.instructions.push_back({3, 0, Role::kWaits, us(40), us(41)});
  times.instructions.push_back({4, 0, Role::kWaits, us(41), us(71)});
  times.instructions.push_back({5, 0, Role::kWaits, us(71), us(72)});
  times.collectives = {{us(0), us(41), 16}, {us(10), us(71), 16}, {us(20), us(72), 16}};
  EXPECT_THAT(Rows(graph::TraceText({MeasuredProcess(*program, ops, 0, times, 100)}), 0),
              ElementsAre("communication channel 0 collective send to stage 1: 0 10",
                          "communication channel 0 collective send to stage 1: 10 71",
                          "communication channel 0 collective send to stage 1: 71 72"));
}

// As a simulated step's, and what is copied.
TEST(MeasuredProcess, OnADeviceEachCommunicatorHasAThreadAndCopiesHaveOne) {
  const graph::Program program = Parse();
  const graph::OpTable ops;
  const std::string text = graph::TraceText({MeasuredProcess(program, ops, 0, OnDevice(Times(100)), 100 - 9e-6)});
  const std::vector<std::string> rows = Rows(text, 0);
  EXPECT_THAT(rows, testing::Contains("communication fsdp collective all_gather: 10 34"));
  EXPECT_THAT(rows, testing::Contains("copy copy upload: 0 11"));
  EXPECT_THAT(rows, testing::Contains("copy copy download: 89 90"));
  for (const graph::TraceSlice& slice : graph::SlicesOf(text)) {
    if (slice.name == "upload") {
      EXPECT_EQ(slice.arguments, nlohmann::json({{"name", "x document_start"}, {"bytes", 128}}));
    }
  }
  // Viewers show them in this order.
  std::map<int, int> sort_indices;
  std::map<int, std::string> names;
  const nlohmann::json trace = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") names[event["tid"]] = event["args"]["name"];
    if (event["name"] == "thread_sort_index") sort_indices[event["tid"]] = event["args"]["sort_index"];
  }
  std::map<std::string, int> order;
  for (const auto& [thread, name] : names) order[name] = sort_indices[thread];
  EXPECT_THAT(order, ElementsAre(testing::Pair("communication fsdp", 1), testing::Pair("compute", 0),
                                 testing::Pair("copy", 2)));
}

// Two ranks as threads, of which the second is asked for a trace.
struct Outcome {
  std::vector<int64_t> steps;
  std::string events;  // of the second rank
};

Outcome TraceTwoRanks(
    const TestDirectory& directory, const std::string& path,
    const std::function<StepTimes(StepTimes)>& change = [](StepTimes times) { return times; }) {
  const graph::Program program = Parse();
  const graph::OpTable ops;
  auto transports = MakeInProcessTransports(2, absl::Seconds(20));
  Outcome outcome{{0, 0}, ""};
  FILE* file = std::fopen(directory.File("events").c_str(), "w");
  EXPECT_NE(file, nullptr);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      Collectives collectives(rank, 2);
      collectives.Connect(transports[rank].get());
      EventWriter events(fileno(file));
      RankTrace trace({rank == 1 ? path : "", 3, rank == 1 ? "the prediction" : ""}, &program, &ops, &collectives,
                      &events);
      EXPECT_TRUE(trace.Agree(/*steps_done=*/5, /*max_steps=*/7).ok());
      outcome.steps[rank] = trace.step();
      EXPECT_TRUE(trace.Finish(change(Times(100 + rank))).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::fclose(file);
  outcome.events = TestDirectory::Read(directory.File("events"));
  return outcome;
}

TEST(RankTrace, WhoIsAskedWritesAllRanks) {
  const TestDirectory directory;
  const std::string path = directory.File("trace.json");
  const Outcome outcome = TraceTwoRanks(directory, path);
  EXPECT_THAT(outcome.steps, ElementsAre(7, 7));  // the last: the third is beyond the end
  EXPECT_THAT(outcome.events, HasSubstr(absl::StrCat(R"("event":"trace","path":")", path, R"(","step":7)")));
  EXPECT_EQ(TestDirectory::Read(directory.File("trace.predicted.json")), "the prediction");
  const std::string text = TestDirectory::Read(path);
  EXPECT_THAT(text, HasSubstr(R"("labels":"fsdp=2, 1 micro-batch")"));
  // The first to begin is at 0; the other began a second later, by the clock that both have.
  EXPECT_THAT(Rows(text, 0), testing::Contains("compute node mul: 30 50"));
  double begin = 0;
  for (const graph::TraceSlice& slice : graph::SlicesOf(text)) {
    if (slice.process == 1 && slice.name == "mul") begin = slice.begin;
  }
  EXPECT_NEAR(begin, 1e6 + 30, 1e4);
}

// The first to begin is a copy.
TEST(RankTrace, NothingIsBeforeTheTrace) {
  const TestDirectory directory;
  const std::string path = directory.File("trace.json");
  TraceTwoRanks(directory, path, OnDevice);
  const std::vector<std::string> rows = Rows(TestDirectory::Read(path), 0);
  EXPECT_THAT(rows, testing::Contains("copy copy upload: 0 11"));
  EXPECT_THAT(rows, testing::Contains("compute node mul: 39 59"));
}

TEST(RankTrace, AFileThatCannotBeWrittenIsAWarning) {
  const TestDirectory directory;
  const Outcome outcome = TraceTwoRanks(directory, directory.File("nowhere/trace.json"));
  EXPECT_THAT(outcome.events, HasSubstr(R"("code":"trace_failed")"));
  EXPECT_THAT(outcome.events, HasSubstr("/nowhere/trace.json"));
}

TEST(RankTrace, NobodyAskedNothingTraced) {
  const graph::Program program = Parse();
  const graph::OpTable ops;
  Collectives collectives(0, 1);
  EventWriter events(STDERR_FILENO);
  RankTrace trace({"", 3}, &program, &ops, &collectives, &events);
  ASSERT_TRUE(trace.Agree(0, 10).ok());
  EXPECT_EQ(trace.step(), 0);
}

}  // namespace
}  // namespace tacc::worker
