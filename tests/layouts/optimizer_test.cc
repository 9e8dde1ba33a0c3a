// Each optimizer in layouts of dp, fsdp, tp and ZeRO against one rank, on simulated ranks in double precision: what
// differs is the order of sums. The model's dims are odd, so that shards are padded and lie across rows of matrices.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/state_names.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

constexpr int64_t kGlobalBatch = 24, kSeq = 6, kVocab = 13;
constexpr int kSteps = 4;

struct Layout {
  int64_t dp = 1, fsdp = 1, tp = 1, accumulation = 1;
  int zero_stage = 3;
  DType compute_dtype = DType::kF32;
};

std::string Name(const Layout& l) {
  return absl::StrCat("dp", l.dp, "_fsdp", l.fsdp, "_tp", l.tp, "_accumulation", l.accumulation, "_zero", l.zero_stage,
                      "_", Name(l.compute_dtype));
}

std::vector<Layout> Layouts() {
  constexpr DType kBF16 = DType::kBF16, kF16 = DType::kF16;
  return {{.dp = 2},
          {.fsdp = 2},
          {.fsdp = 3, .accumulation = 2},
          {.fsdp = 8},
          {.fsdp = 2, .zero_stage = 1},
          {.fsdp = 3, .zero_stage = 1, .compute_dtype = kBF16},
          {.fsdp = 3, .accumulation = 2, .zero_stage = 2},
          {.tp = 2},
          {.dp = 2, .fsdp = 2, .tp = 2, .accumulation = 2},
          {.fsdp = 2, .tp = 2, .accumulation = 2, .zero_stage = 2, .compute_dtype = kF16}};
}

struct Case {
  const char* name;
  OptimizerOptions options;
};

std::vector<Case> Cases() {
  OptimizerOptions plain{.optim = "sgd"}, momentum{.optim = "sgd"}, nesterov{.optim = "sgd"}, muon{.optim = "muon"};
  momentum.momentum = 0.9;
  momentum.dampening = 0.3;
  nesterov.momentum = 0.9;
  nesterov.nesterov = true;
  muon.adjust_lr_fn = "match_rms_adamw";
  OptimizerOptions average;
  average.ema_decay = 0.7;
  return {{"adamw", {}},
          {"adam", {.optim = "adam"}},
          {"sgd", plain},
          {"momentum", momentum},
          {"nesterov", nesterov},
          {"lion", {.optim = "lion"}},
          {"muon", muon},
          {"muon_original", {.optim = "muon"}},
          {"adafactor", {.optim = "adafactor"}},
          {"average", average}};
}

absl::StatusOr<Compiled> CompileLayout(const OptimizerOptions& optimizer, const Layout& layout, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", kGlobalBatch / layout.accumulation}, {"S", kSeq}};
  auto forward = ParseGraph(TestModelText(), parse);
  if (!forward.ok()) return forward.status();
  for (Node& node : forward->nodes) {  // a group of parameters with values of its own
    if (node.op != Op::kParam || node.symbol != "layers.1.down.weight") continue;
    node.attrs["learning_rate"] = 3e-2;
    node.attrs["weight_decay"] = 0.0;
  }
  CompileOptions options;
  static_cast<OptimizerOptions&>(options.training) = optimizer;
  options.training.accumulation = layout.accumulation;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "table";
  options.training.lr_schedule.factors = {1.0, 0.5, 0.75};
  options.training.max_steps = 10;
  options.training.weight_decay = 0.1;
  options.training.max_grad_norm = 0.5;  // below the norm at hand, so that clipping matters
  options.compute_dtype = layout.compute_dtype;
  if (layout.compute_dtype == DType::kF16) options.training.loss_scale.emplace();
  options.partition = LayoutOf({{{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"tp", layout.tp}}}, "embed");
  options.partition.zero_stage = layout.zero_stage;
  options.partition.units = options.schedule.units = {"layers.0", "layers.1"};
  return Compile(*forward, ops, options);
}

absl::StatusOr<TrainingRun> Train(const OptimizerOptions& optimizer, const Layout& layout, const OpTable& ops) {
  auto compiled = CompileLayout(optimizer, layout, ops);
  if (!compiled.ok()) return compiled.status();
  const int64_t rows = kGlobalBatch / layout.accumulation;
  return TrainOnSimulatedRanks(compiled->stages[0], kSteps, layout.accumulation, [&](int step, int64_t micro_batch) {
    return RandomRows(step, micro_batch * rows, rows, kSeq, kVocab);
  });
}

class OptimizerTest : public testing::TestWithParam<Case> {};

TEST_P(OptimizerTest, EqualsOneRankInAnyLayout) {
  const OpTable ops;
  const auto one = Train(GetParam().options, {}, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_NE(one->losses[0], one->losses[kSteps - 1]);
  for (const Layout& layout : Layouts()) {
    SCOPED_TRACE(Name(layout));
    ExpectSame(Train(GetParam().options, layout, ops), one);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerTest, testing::ValuesIn(Cases()),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

// Bytes of the optimizer's states, by what their names begin with.
std::map<std::string, int64_t> StateBytes(const OptimizerOptions& optimizer, const Layout& layout) {
  const OpTable ops;
  const auto compiled = CompileLayout(optimizer, layout, ops);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  std::map<std::string, int64_t> bytes;
  int64_t all = 0;
  for (const State& state : compiled->stages[0].states) {
    if (state.kind != StateKind::kOptimizer) continue;
    bytes[state.name.substr(0, state.name.find('/'))] += state.type.bytes();
    all += state.type.bytes();
  }
  EXPECT_EQ(compiled->memory[0].optimizer_bytes, all);
  return bytes;
}

int64_t WeightBytes(bool matrices_alone) {
  const OpTable ops;
  const auto compiled = CompileLayout({}, {}, ops);
  int64_t bytes = 0;
  for (const State& state : compiled->stages[0].states) {
    if (state.kind == StateKind::kWeight && (!matrices_alone || state.stored_dims.size() > 1))
      bytes += state.type.bytes();
  }
  return bytes;
}

TEST(OptimizerMemoryTest, HasTheStatesOfTheOptimizerAlone) {
  OptimizerOptions momentum{.optim = "sgd"};
  momentum.momentum = 0.9;
  using Bytes = std::map<std::string, int64_t>;
  const int64_t weights = WeightBytes(false);
  EXPECT_EQ(StateBytes({}, {}), (Bytes{{"exp_avg", weights}, {"exp_avg_sq", weights}}));
  EXPECT_EQ(StateBytes({.optim = "sgd"}, {}), Bytes());
  EXPECT_EQ(StateBytes(momentum, {}), (Bytes{{"momentum_buffer", weights}}));
  EXPECT_EQ(StateBytes({.optim = "lion"}, {}), (Bytes{{"exp_avg", weights}}));
  const Bytes muon = StateBytes({.optim = "muon"}, {});
  EXPECT_EQ(muon.at("exp_avg") + muon.at("momentum_buffer"), weights);
  EXPECT_GT(muon.at("momentum_buffer"), muon.at("exp_avg"));
  const Bytes factored = StateBytes({.optim = "adafactor"}, {});
  EXPECT_EQ(factored.at("exp_avg_sq"), weights - WeightBytes(true));
  EXPECT_LT(factored.at("exp_avg_sq_row") + factored.at("exp_avg_sq_col"), WeightBytes(true) / 2);
}

// States like the weight lie in slices.
TEST(OptimizerMemoryTest, SharesStates) {
  for (const Layout& layout : {Layout{.fsdp = 2}, Layout{.fsdp = 2, .zero_stage = 1}}) {
    const int64_t whole = StateBytes({.optim = "lion"}, {}).at("exp_avg");
    const int64_t slice = StateBytes({.optim = "lion"}, layout).at("exp_avg");
    EXPECT_LE(slice, whole * 6 / 10);
  }
}

}  // namespace
}  // namespace tacc::graph
