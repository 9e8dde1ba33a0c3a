// A whole rank as its daemon starts it, of a small model, on a simulated device.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "graph/ir/text.h"
#include "graph/ops/op.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "graph/verify/verify.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/data/testing/data_folder.h"
#include "worker/rank/program/cpu_kernels.h"
#include "worker/rank/run/run.h"
#include "worker/rank/run/run_options.h"
#include "worker/rank/testing/simulated_device.h"
#include "worker/rank/timing/gap_trace.h"

namespace tacc::worker {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr int64_t kBatch = 2, kSeq = 6, kVocab = 13;
constexpr int64_t kSteps = GapTrace::kFirstStep + 2;

// One that has several algorithms for a product.
class MultiplyingDevice : public SimulatedDevice {
 public:
  using SimulatedDevice::SimulatedDevice;
  std::vector<ProductChoice> MeasuredProducts() const override { return measured; }
  void MeasureProducts(const std::vector<std::string>& shapes) override {
    asked = shapes;
    measured = measured_anew;
  }
  void TakeProducts(const std::vector<ProductChoice>& choices) override { taken = choices; }

  std::vector<ProductChoice> measured, measured_anew, taken;
  std::vector<std::string> asked;  // To measure anew.
};

class RankOnDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    graph::ParseOptions parse;
    parse.symbols = {{"B", kBatch}, {"S", kSeq}};
    const auto forward = graph::ParseGraph(graph::TestModelText(1), parse);
    ASSERT_TRUE(forward.ok()) << forward.status();
    graph::CompileOptions options;
    options.training.max_steps = kSteps;
    options.partition.mesh.axes = {{"dp", 1}, {"fsdp", 1}};
    options.partition.batch_axes = {0, 1};
    options.partition.at_rest_axes = {1};
    options.schedule.units = options.stages.units = {"layers.0"};
    const auto compiled = graph::Compile(*forward, ops_, options);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    std::ofstream(Path("program")) << graph::Print(compiled->stages[0]);
    TestShard shard;
    for (uint32_t i = 0; i < 200; ++i) shard.tokens.push_back(i * i % kVocab);
    WriteDataFolder(Path("data"), {shard}, kVocab);
    start_ = {{"version", "test"},
              {"job", "t-1"},
              {"attempt", 1},
              {"rank", 0},
              {"world", 1},
              {"device", "cuda:0"},
              {"threads", 1},
              {"memory_bytes", 0},
              {"advertise", "127.0.0.1"},
              {"program", Path("program")},
              {"model_dir", ""},
              {"weights", "random"},
              {"seed", 3},
              {"data", {{"path", Path("data")}, {"eval_path", ""}, {"seq_len", kSeq}, {"global_batch_size", kBatch}}},
              {"train", {{"max_steps", kSteps}, {"eval_steps", 0}, {"deterministic", true}}},
              {"compute", {{"tf32", false}}},
              {"checkpoint", {{"dir", ""}, {"save_steps", 0}, {"resume", ""}, {"export", ""}}},
              {"identity", json::object()},
              {"collective_timeout_seconds", 60}};
    // Its end would end the process.
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    commands_ = ends[0];
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  // Trains on the device, and returns the events.
  std::vector<json> Run(bool traces_gaps) {
    std::ofstream(Path("start.json")) << start_.dump();
    RunOptions options;
    options.start_file = Path("start.json");
    options.version = "test";
    options.traces_gaps = traces_gaps;
    options.open_device = [this](const StartFile& start) -> absl::StatusOr<Device*> {
      earlier_products_ = start.products;
      return &device_;
    };
    options.aliases = [this](const graph::Graph& graph, const graph::Node& node) {
      const graph::OpDef* op = ops_.Find(node.op);
      return op->aliases ? op->aliases(graph::CallOf(graph, node)) : std::vector<int>();
    };
    options.ops = &ops_;
    options.verify = [this](const graph::Program& program) { return graph::Verify(program, ops_); };
    options.command_fd = commands_;
    std::FILE* const file = std::fopen(Path("events").c_str(), "w");
    options.event_fd = fileno(file);
    const int code = RunRank(options);
    std::fclose(file);
    std::vector<json> events;
    std::ifstream lines(Path("events"));
    for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line));
    EXPECT_EQ(code, 0) << events.back();
    return events;
  }

  const graph::OpTable ops_;
  const CpuKernelTable kernels_;
  const TestDirectory folder_;
  json start_;
  MultiplyingDevice device_{&kernels_};
  EarlierProducts earlier_products_;  // As the start file told the device.
  int commands_ = -1;
};

std::vector<json> Of(const std::vector<json>& events, const std::string& name) {
  std::vector<json> some;
  for (const json& event : events) {
    if (event.at("event") == name) some.push_back(event);
  }
  return some;
}

std::string Logged(const std::vector<json>& events) {
  std::string text;
  for (const json& event : Of(events, "log")) text += event.at("message").get<std::string>() + "\n";
  return text;
}

// The simulated device takes a millisecond for a piece, by far more than the host: as busy as that it is never idle.
// With gaps after a millionth of each piece it does next to nothing.
TEST_F(RankOnDeviceTest, GapsCountAsIdleOnceAStepWasTraced) {
  device_.SetActiveShare(1e-6);
  const std::vector<json> events = Run(/*traces_gaps=*/true);
  const std::vector<json> steps = Of(events, "step");
  ASSERT_EQ(static_cast<int64_t>(steps.size()), kSteps);
  for (const json& step : steps) {
    const int64_t number = step.at("step");
    EXPECT_EQ(step.contains("device_idle_share"), number > GapTrace::kFirstStep) << step;
    if (number > GapTrace::kFirstStep) {
      EXPECT_GT(step.at("device_idle_share"), 0.9) << step;
    }
    // The traced step is one as the others.
    if (number > 1) {
      EXPECT_EQ(step.at("replays"), steps[1].at("replays")) << step;
    }
  }
  EXPECT_EQ(device_.num_activities(), 2);  // One is of no step.
  EXPECT_THAT(Logged(events), HasSubstr("the GPU worked in 0.0001 %"));
}

TEST_F(RankOnDeviceTest, WithoutGapsADeviceThatHasWorkIsNotIdle) {
  const std::vector<json> steps = Of(Run(/*traces_gaps=*/true), "step");
  ASSERT_EQ(static_cast<int64_t>(steps.size()), kSteps);
  EXPECT_EQ(steps.back().at("device_idle_share"), 0);
}

TEST_F(RankOnDeviceTest, WhereWorkCannotBeTracedThereIsNoIdleShare) {
  device_.FailActivity(absl::InternalError("CUPTI: no"));
  const std::vector<json> events = Run(/*traces_gaps=*/true);
  ASSERT_EQ(static_cast<int64_t>(Of(events, "step").size()), kSteps);
  for (const json& step : Of(events, "step")) EXPECT_FALSE(step.contains("device_idle_share")) << step;
  EXPECT_THAT(Logged(events), HasSubstr("device_idle_share is left out: CUPTI: no"));
}

TEST_F(RankOnDeviceTest, TracesNothingWhereItIsNotWanted) {
  const std::vector<json> steps = Of(Run(/*traces_gaps=*/false), "step");
  ASSERT_EQ(static_cast<int64_t>(steps.size()), kSteps);
  EXPECT_EQ(device_.num_activities(), 0);
  EXPECT_FALSE(steps.back().contains("device_idle_share"));
}

TEST_F(RankOnDeviceTest, TakesTheFastestAlgorithmsAndSaysSo) {
  start_["train"]["deterministic"] = false;
  device_.measured = {{"a", "", {{kLibtorchProduct, 3e-3}, {"lt:1", 2e-3}, {"lt:2", 1e-3}}},
                      {"b", "", {{kLibtorchProduct, 1e-3}, {"lt:1", 2e-3}, {"lt:2", 0, "its result is another"}}}};
  const std::vector<json> events = Run(/*traces_gaps=*/false);
  EXPECT_TRUE(earlier_products_.empty());
  ASSERT_EQ(device_.taken.size(), 2u);
  EXPECT_EQ(device_.taken[0].algorithm, "lt:2");
  EXPECT_EQ(device_.taken[1].algorithm, kLibtorchProduct);
  EXPECT_EQ(Of(events, "ready").at(0).at("products"), json::parse(R"([
      {"shape": "a", "algorithm": "lt:2", "seconds": 1e-3, "libtorch_seconds": 3e-3},
      {"shape": "b", "algorithm": "libtorch", "seconds": 1e-3, "libtorch_seconds": 1e-3}])"));
  EXPECT_THAT(Logged(events), HasSubstr("product a: lt:2 1.000 ms, libtorch 3.000 ms, of 3 measured"));
  EXPECT_EQ(Of(events, "warning").at(0).at("code"), "products");
  EXPECT_EQ(Of(events, "warning").at(0).at("message"),
            "product b is computed by libtorch; lt:2 failed: rank 0: its result is another");
}

TEST_F(RankOnDeviceTest, WithoutTimesTheLibrarysFirstAlgorithmIsTaken) {
  device_.measured = {{"a", "", {{kLibtorchProduct, 3e-3}, {"lt:1", 2e-3}, {"lt:2", 1e-3}}}};
  Run(/*traces_gaps=*/false);
  EXPECT_EQ(device_.taken.at(0).algorithm, "lt:1");
}

TEST_F(RankOnDeviceTest, KeepsTheAlgorithmsOfTheAttemptBefore) {
  start_["products"] = {{"a", "lt:2"}};
  device_.measured = {{"a", "", {{kLibtorchProduct}, {"lt:2"}}}};
  const std::vector<json> events = Run(/*traces_gaps=*/false);
  EXPECT_EQ(earlier_products_, (EarlierProducts{{"a", "lt:2"}}));
  EXPECT_EQ(device_.taken.at(0).algorithm, "lt:2");
  EXPECT_EQ(Of(events, "ready").at(0).at("products"), json::parse(R"([{"shape": "a", "algorithm": "lt:2"}])"));
  EXPECT_TRUE(device_.asked.empty());
  EXPECT_TRUE(Of(events, "warning").empty());
}

TEST_F(RankOnDeviceTest, WhereTheAlgorithmsOfTheAttemptBeforeAreNotThereOthersAreMeasured) {
  start_["products"] = {{"a", "lt:2"}};
  device_.measured = {{"a", "", {{kLibtorchProduct}, {"its library", 0, "busy"}}}};
  device_.measured_anew = {{"a", "", {{kLibtorchProduct, 3e-3}, {"lt:1", 1e-3}}}};
  const std::vector<json> events = Run(/*traces_gaps=*/false);
  EXPECT_EQ(device_.asked, std::vector<std::string>{"a"});
  EXPECT_EQ(device_.taken.at(0).algorithm, "lt:1");
  EXPECT_THAT(Of(events, "warning").at(0).at("message").get<std::string>(),
              HasSubstr("product a is computed by lt:1, in the attempt before by lt:2"));
}

}  // namespace
}  // namespace tacc::worker
