// Training in f16 through steps whose gradients are not finite, on simulated ranks in double precision: the scale, what
// is skipped, and that the rest is the training of the other steps alone.
#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"
#include "tests/interpreter/simulation.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

using interpreter::Array;

constexpr int64_t kRows = 8, kMicroBatches = 2, kSeq = 6, kVocab = 13;
constexpr double kInitialScale = 16;
constexpr int64_t kGrowthInterval = 3;

struct Layout {
  int64_t pp = 1, dp = 1, fsdp = 1, tp = 1;
  int zero_stage = 3;
};

std::string Name(const Layout& l) {
  return absl::StrCat("pp", l.pp, "_dp", l.dp, "_fsdp", l.fsdp, "_tp", l.tp, "_zero", l.zero_stage);
}

absl::StatusOr<Compiled> CompileLayout(const Layout& layout, DType dtype, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", kRows}, {"S", kSeq}};
  auto forward = ParseGraph(TestModelText(), parse);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.accumulation = kMicroBatches;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "constant";
  options.training.max_grad_norm = 0.5;  // below the norm at hand
  options.compute_dtype = dtype;
  if (dtype == DType::kF16) options.training.loss_scale = {kInitialScale, kGrowthInterval};
  Mesh mesh;
  if (layout.pp > 1) mesh.axes.push_back({"pp", layout.pp});
  mesh.axes.insert(mesh.axes.end(), {{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"tp", layout.tp}});
  options.partition = LayoutOf(mesh, "embed");
  options.partition.zero_stage = layout.zero_stage;
  options.partition.units = options.schedule.units = options.stages.units = {"layers.0", "layers.1"};
  return Compile(*forward, ops, options);
}

std::map<std::string, Array> InitialWeights(const std::vector<Program>& stages) {
  std::map<std::string, Array> weights;
  for (const Program& program : stages) {
    for (const State& state : program.states) {
      if (state.kind != StateKind::kWeight) continue;
      std::mt19937 random(static_cast<uint32_t>(std::hash<std::string>()(state.name)));
      std::normal_distribution<double> normal(0, 0.5);
      Array weight = Array::Filled(state.logical_dims(), 0);
      for (double& x : weight.values) x = weight.dims.size() == 1 ? 1.0 : normal(random);
      weights[state.name] = std::move(weight);
    }
  }
  return weights;
}

// A job on simulated ranks.
class Job {
 public:
  explicit Job(std::vector<Program> stages) : stages_(std::move(stages)), simulation_(stages_) {
    for (const auto& [name, weight] : InitialWeights(stages_)) SetWeight(name, weight);
  }

  // One step on the batch of `batch`.
  void Step(int step, int batch) {
    const absl::Status status = simulation_.RunStep([&](int64_t m) {
      interpreter::Arrays inputs = RandomRows(batch, m * kRows, kRows, kSeq, kVocab);
      inputs["step"].values = {static_cast<double>(step)};
      return inputs;
    });
    ASSERT_TRUE(status.ok()) << status;
  }
  void SetWeight(const std::string& name, const Array& weight) {
    ASSERT_TRUE(simulation_.SetState(name, weight).ok());
    // Where the model reads a narrower copy.
    (void)simulation_.SetState(absl::StrCat("copies/", name.substr(8)), weight).ok();
  }
  // The same on all stages that have it.
  Array State(const std::string& name) const {
    const auto state = simulation_.GetState(name);
    EXPECT_TRUE(state.ok()) << state.status();
    return state.ok() ? *state : Array();
  }
  double Output(const std::string& name) const {
    const double value = simulation_.outputs(0).at(name).values[0];
    for (size_t stage = 1; stage < stages_.size(); ++stage) {
      const double other = simulation_.outputs(static_cast<int>(stage)).at(name).values[0];
      EXPECT_TRUE(other == value || (std::isnan(other) && std::isnan(value))) << other << " against " << value;
    }
    return value;
  }

 private:
  const std::vector<Program> stages_;
  interpreter::PipelineSimulation simulation_;
};

// The rule of torch.amp.GradScaler, with its defaults for growth and backoff, and a least scale of 1.
struct GradScaler {
  double scale = kInitialScale;
  int64_t good_steps = 0;

  void Update(bool finite) {
    if (!finite) {
      scale = std::max(1.0, scale * 0.5);
      good_steps = 0;
    } else if (++good_steps == kGrowthInterval) {
      scale *= 2.0;
      good_steps = 0;
    }
  }
};

class LossScaleTest : public testing::TestWithParam<Layout> {};

// Steps are bad where the weight that only one stage has is: its gradients and all before it are.
TEST_P(LossScaleTest, FollowsGradScalerAndSkipsNothingElse) {
  const OpTable ops;
  auto half = CompileLayout(GetParam(), DType::kF16, ops), one = CompileLayout({}, DType::kF32, ops);
  ASSERT_TRUE(half.ok()) << half.status();
  ASSERT_TRUE(one.ok()) << one.status();
  const std::map<std::string, Array> weights = InitialWeights(one->stages);
  Job job(std::move(half->stages)), wanted(std::move(one->stages));
  const std::string script = "..!...!!......!!!!!!!.....";
  const std::string broken = "weights/layers.1.down.weight";
  GradScaler scaler;
  int good = 0, skipped = 0;
  for (int step = 0; step < static_cast<int>(script.size()); ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    const bool finite = script[step] == '.';
    const Array weight = job.State(broken);
    if (!finite) {
      Array bad = weight;
      bad.values[3] = std::numeric_limits<double>::infinity();
      job.SetWeight(broken, bad);
    }
    job.Step(step, step);
    if (finite) {
      wanted.Step(good++, step);
      ExpectNear(job.Output("loss"), wanted.Output("loss"), 1e-11, "loss");
      ExpectNear(job.Output("grad_norm"), wanted.Output("grad_norm"), 1e-11, "norm");
    } else {
      ++skipped;
      EXPECT_FALSE(std::isfinite(job.Output("grad_norm")));
      job.SetWeight(broken, weight);
    }
    scaler.Update(finite);
    EXPECT_EQ(job.Output("skipped"), finite ? 0.0 : 1.0);
    EXPECT_EQ(job.Output("loss_scale"), scaler.scale);
    EXPECT_EQ(job.State("loss_scale/scale").values[0], scaler.scale);
    EXPECT_EQ(job.State("loss_scale/good_steps").values[0], static_cast<double>(scaler.good_steps));
    EXPECT_EQ(job.State("loss_scale/skipped").values[0], skipped);
  }
  for (const auto& [name, initial] : weights) {
    for (const char* prefix : {"weights/", "exp_avg/", "exp_avg_sq/"}) {
      const std::string state = absl::StrCat(prefix, name.substr(8));
      const Array got = job.State(state), want = wanted.State(state);
      ASSERT_EQ(got.values.size(), want.values.size());
      for (size_t i = 0; i < want.values.size(); ++i) ExpectNear(got.values[i], want.values[i], 1e-10, state);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Layouts, LossScaleTest,
                         testing::Values(Layout{}, Layout{.dp = 2, .fsdp = 2},
                                         Layout{.fsdp = 2, .tp = 2, .zero_stage = 1}, Layout{.pp = 2, .fsdp = 2},
                                         Layout{.pp = 2, .tp = 2}),
                         [](const testing::TestParamInfo<Layout>& info) { return Name(info.param); });

// The loss is multiplied by no more than for a mean over the step's tokens.
TEST(LossScale, IsThatOfAMean) {
  const OpTable ops;
  auto compiled = CompileLayout({}, DType::kF16, ops);
  ASSERT_TRUE(compiled.ok()) << compiled.status();
  const Graph& graph = *compiled->stages[0].FindGraph("forward_backward");
  int seeds = 0;
  for (const Node& node : graph.nodes) {
    if (node.op != "scale" || !graph.type(node.results[0]).dims.empty()) continue;
    ++seeds;
    EXPECT_EQ(GetAttr<double>(node.attrs, "factor"), 1.0 / 128);  // 2 x 8 x 6 = 96 tokens
  }
  EXPECT_EQ(seeds, 1);
}

}  // namespace
}  // namespace tacc::graph
