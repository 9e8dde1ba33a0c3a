// Every layout of dp, fsdp and accumulation against one rank, on simulated ranks in double precision: what differs is
// the order of sums, so the tolerance is a few units in the last place of f64. Padding is NaN in the simulation, so a
// pass that lets it in shows at once.
#include "graph/passes/partition/layout.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/analysis/cost.h"
#include "graph/ir/text.h"
#include "graph/ir/topology.h"
#include "graph/passes/partition/pins.h"
#include "graph/passes/pipeline.h"
#include "graph/passes/testing/test_model.h"
#include "gtest/gtest.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

constexpr int64_t kGlobalBatch = 24, kSeq = 6, kVocab = 13;
constexpr int kSteps = 3;

struct Layout {
  int64_t dp = 1, fsdp = 1, accumulation = 1;
  int prefetch_units = 1;
  DType compute_dtype = DType::kF32;
  int64_t tp = 1, tpq = 1;  // kv heads over tp, query heads over both
  int zero_stage = 3;
  int64_t kept_units = 0;  // of two
  std::vector<std::string> topology;
  Pins pins;

  int64_t ranks() const { return dp * fsdp * tp * tpq; }
};

std::string Name(const Layout& l) {
  auto part = [](const char* name, int64_t size, int64_t usual) {
    return size == usual ? "" : absl::StrCat("_", name, size);
  };
  return absl::StrCat("dp", l.dp, "_fsdp", l.fsdp, "_accumulation", l.accumulation, "_prefetch", l.prefetch_units,
                      part("tp", l.tp, 1), part("tpq", l.tpq, 1), part("zero", l.zero_stage, 3),
                      part("kept", l.kept_units, 0),
                      l.topology.empty() ? "" : absl::StrCat("_", absl::StrJoin(l.topology, "_")),
                      l.compute_dtype == DType::kF32 ? "" : absl::StrCat("_", Name(l.compute_dtype)));
}

absl::StatusOr<Compiled> CompileLayout(const Layout& layout, const OpTable& ops) {
  ParseOptions parse;
  parse.symbols = {{"B", kGlobalBatch / layout.accumulation}, {"S", kSeq}};
  auto forward = ParseGraph(TestModelText(), parse);
  if (!forward.ok()) return forward.status();
  CompileOptions options;
  options.training.accumulation = layout.accumulation;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "cosine";
  options.training.warmup_steps = 1;
  options.training.max_steps = 10;
  options.training.weight_decay = 0.1;
  options.training.max_grad_norm = 0.5;  // below the norm at hand, so that clipping matters
  options.compute_dtype = layout.compute_dtype;
  if (layout.compute_dtype == DType::kF16) options.training.loss_scale.emplace();
  const auto mesh =
      InTopology({{{"dp", layout.dp}, {"fsdp", layout.fsdp}, {"tp", layout.tp}, {"tpq", layout.tpq}}}, layout.topology);
  if (!mesh.ok()) return mesh.status();
  options.partition = LayoutOf(*mesh, "embed");
  if (auto status = ApplyPins(layout.pins, *forward, options.partition); !status.ok()) return status;
  options.partition.zero_stage = layout.zero_stage;
  options.partition.units = {"layers.0", "layers.1"};
  options.schedule.units = {"layers.0", "layers.1"};
  options.schedule.prefetch_units = layout.prefetch_units;
  options.schedule.kept_units = layout.kept_units;
  return Compile(*forward, ops, options);
}

absl::StatusOr<TrainingRun> Train(const Layout& layout, const OpTable& ops) {
  auto compiled = CompileLayout(layout, ops);
  if (!compiled.ok()) return compiled.status();
  const int64_t rows = kGlobalBatch / layout.accumulation;
  return TrainOnSimulatedRanks(compiled->stages[0], kSteps, layout.accumulation, [&](int step, int64_t micro_batch) {
    return RandomRows(step, micro_batch * rows, rows, kSeq, kVocab);
  });
}

void ExpectEqualsOneRank(const Layout& layout) {
  const OpTable ops;
  static const auto one = Train({1, 1, 1}, ops);
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_GT(one->norms[0], 0.5);  // clipping is on
  EXPECT_NE(one->losses[0], one->losses[kSteps - 1]);
  ExpectSame(Train(layout, ops), one);
}

class LayoutTest : public testing::TestWithParam<Layout> {};

TEST_P(LayoutTest, EqualsOneRank) { ExpectEqualsOneRank(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Layouts, LayoutTest,
    testing::Values(
        Layout{.accumulation = 2}, Layout{.accumulation = 4}, Layout{.dp = 2}, Layout{.dp = 3}, Layout{.fsdp = 2},
        Layout{.fsdp = 2, .accumulation = 2}, Layout{.fsdp = 3}, Layout{.fsdp = 3, .accumulation = 4},
        Layout{.fsdp = 2, .prefetch_units = 0}, Layout{.fsdp = 2, .prefetch_units = 2}, Layout{.dp = 2, .fsdp = 2},
        Layout{.dp = 2, .fsdp = 2, .accumulation = 2}, Layout{.dp = 2, .fsdp = 3, .accumulation = 2}, Layout{.fsdp = 8},
        Layout{.compute_dtype = DType::kBF16},
        Layout{.dp = 2, .fsdp = 2, .accumulation = 2, .compute_dtype = DType::kBF16}, Layout{.tp = 2},
        Layout{.accumulation = 2, .tp = 2}, Layout{.tp = 2, .tpq = 2}, Layout{.fsdp = 2, .tp = 2},
        Layout{.dp = 2, .fsdp = 2, .accumulation = 2, .tp = 2, .tpq = 2},
        Layout{.dp = 2, .fsdp = 3, .accumulation = 2, .tp = 2},
        Layout{.fsdp = 2, .accumulation = 2, .compute_dtype = DType::kBF16, .tp = 2},
        Layout{.fsdp = 2, .zero_stage = 1}, Layout{.dp = 2, .fsdp = 2, .accumulation = 2, .zero_stage = 1},
        Layout{.fsdp = 2, .accumulation = 2, .zero_stage = 2},
        Layout{.fsdp = 3, .accumulation = 2, .compute_dtype = DType::kBF16, .zero_stage = 1},
        Layout{.fsdp = 2, .accumulation = 2, .compute_dtype = DType::kBF16, .tp = 2, .zero_stage = 2},
        Layout{.fsdp = 2, .accumulation = 2, .kept_units = 2}, Layout{.fsdp = 2, .prefetch_units = 0, .kept_units = 1},
        Layout{.dp = 2, .fsdp = 2, .accumulation = 2, .compute_dtype = DType::kBF16, .tp = 2, .kept_units = 2},
        Layout{.dp = 2, .fsdp = 2, .accumulation = 2, .tp = 2, .tpq = 2, .topology = {"tp", "fsdp", "dp"}},
        Layout{.dp = 2, .fsdp = 3, .topology = {"fsdp", "dp"}}, Layout{.compute_dtype = DType::kF16},
        Layout{.dp = 2, .fsdp = 2, .accumulation = 2, .compute_dtype = DType::kF16},
        Layout{.fsdp = 2, .accumulation = 2, .compute_dtype = DType::kF16, .tp = 2, .zero_stage = 2}),
    [](const testing::TestParamInfo<Layout>& info) { return Name(info.param); });

// Replicating everything would pass the test above; this one counts.
TEST_P(LayoutTest, SharesWorkMemoryAndTraffic) {
  const Layout layout = GetParam();
  const OpTable ops;
  auto one = CompileLayout({.compute_dtype = layout.compute_dtype}, ops), many = CompileLayout(layout, ops);
  ASSERT_TRUE(one.ok() && many.ok());
  const int64_t ranks = layout.ranks();
  const DeviceProfile device;
  const StepCost cost = StepCostOf(many->stages[0], ops, device);
  // The model's dims are odd: padding adds to what a rank has to do and to hold.
  double padding = 1;
  double gradients = 0, weights = 0;
  for (const State& state : many->stages[0].states) {
    if (state.kind != StateKind::kWeight) continue;
    const Sharding& s = state.placement.sharding;
    double held = static_cast<double>(state.type.num_elements());
    for (const AxisList& axes : s.dims) held *= static_cast<double>(NumShards(many->stages[0].mesh, axes));
    padding = std::max(padding, held / static_cast<double>(state.placement.global.num_elements()));
    gradients += static_cast<double>(state.placement.global.num_elements()) * 4;
    weights += static_cast<double>(state.placement.global.num_elements()) *
               (layout.compute_dtype != DType::kF32 && state.stored_dims.size() > 1 ? 2 : 4);
  }
  EXPECT_LE(cost.matmul_flops, 1.05 * padding / ranks * StepCostOf(one->stages[0], ops, device).matmul_flops);
  const int64_t shards = layout.fsdp * layout.tp * layout.tpq;
  EXPECT_LE(many->memory[0].optimizer_bytes, 1.05 * padding / shards * one->memory[0].optimizer_bytes);
  if (layout.zero_stage == 3) {
    EXPECT_LE(many->memory[0].weights_bytes, 1.05 * padding / shards * one->memory[0].weights_bytes);
  }
  if (layout.tp * layout.tpq > 1) return;  // traffic of activations: tests of the matrix
  if (layout.fsdp == 1 && layout.dp > 1) {
    // Each gradient is all-reduced once a step, whatever the number of micro-batches: 2 (n - 1) / n of its bytes.
    const double theory = 2.0 * (layout.dp - 1) / layout.dp * gradients;
    EXPECT_NEAR(cost.sent_bytes, theory, 0.05 * theory);
  }
  if (layout.dp == 1 && layout.zero_stage < 3) {
    // Gradients are reduce-scattered once (ZeRO-1) or for every micro-batch (ZeRO-2), new weights gathered once.
    const double times = layout.zero_stage == 1 ? 1 : static_cast<double>(layout.accumulation);
    const double theory = padding * (layout.fsdp - 1) / layout.fsdp * (times * gradients + weights);
    EXPECT_NEAR(cost.sent_bytes, theory, (padding - 0.95) * theory);
    return;
  }
  if (layout.dp == 1 && layout.fsdp == 2 && layout.compute_dtype == DType::kF32) {
    // ZeRO-3: gather in forward and backward and reduce-scatter, for every micro-batch: (n - 1) / n of the bytes each.
    // Embedding and head are gathered once: the embedding's backward does not read it, the head's follows its forward;
    // and so are units that keep their weights.
    double once = 0, all = 0;
    for (const State& state : many->stages[0].states) {
      if (state.kind != StateKind::kWeight) continue;
      const double sent = static_cast<double>(state.type.bytes()) * (layout.fsdp - 1);
      all += sent;
      if (state.name == "weights/embed.weight" || state.name == "weights/head.weight") once += sent;
      if (layout.kept_units > 1 && state.name.find("/layers.0.") != std::string::npos) once += sent;
      if (layout.kept_units > 0 && state.name.find("/layers.1.") != std::string::npos) once += sent;
    }
    const double theory = static_cast<double>(layout.accumulation) * (3 * all - once);
    EXPECT_NEAR(cost.sent_bytes, theory, 0.05 * theory);
  }
}

// What is not gathered again lies in memory meanwhile: at most the weights of the units that keep them, whole.
TEST(ReshardAfterForward, TradesMemoryForGathers) {
  const OpTable ops;
  std::vector<double> sent;
  std::vector<int64_t> bytes;
  for (int64_t kept = 0; kept <= 2; ++kept) {
    const auto compiled = CompileLayout({.fsdp = 2, .kept_units = kept}, ops);
    ASSERT_TRUE(compiled.ok()) << compiled.status();
    sent.push_back(StepCostOf(compiled->stages[0], ops, {}).sent_bytes);
    bytes.push_back(compiled->memory[0].arena_bytes);
    int64_t kept_bytes = 0;
    for (const State& state : compiled->stages[0].states) {
      const bool is_kept = (kept > 0 && state.name.find("/layers.1.") != std::string::npos) ||
                           (kept > 1 && state.name.find("/layers.0.") != std::string::npos);
      if (is_kept && state.kind == StateKind::kWeight) kept_bytes += state.placement.global.bytes() + kArenaAlignment;
    }
    EXPECT_LE(bytes.back() - bytes.front(), kept_bytes);
  }
  EXPECT_GT(sent[0], sent[1]);
  EXPECT_GT(sent[1], sent[2]);
  EXPECT_LT(bytes[0], bytes[2]);
}

// Whatever is pinned, what is computed is the same.
TEST(PinnedLayoutTest, EqualsOneRank) {
  Layout layout{1, 1, 1};
  layout.tp = 2;
  const auto expect = [&](const Pins& pins) {
    SCOPED_TRACE(pins.begin()->first);
    layout.pins = pins;
    ExpectEqualsOneRank(layout);
  };
  expect({{"layers.*.gate.weight", "[-, tp]"}, {"layers.*.up.weight", "[-, -]"}, {"head.weight", "[-, tp]"}});
  expect({{"layers.*.norm.weight", "[tp]"}, {"layers.1.q.weight", "[-, tp, -]"}, {"embed.weight", "[-, -]"}});
  expect({{"layers.0.attn", "[-, tp, -]"}, {"layers.1.attn", "[-, -, tp]"}});
  layout.dp = layout.fsdp = 2;
  layout.accumulation = 2;
  expect({{"layers.*.mlp", "[dp, -, tp]"}, {"layers.0", "[fsdp+dp, tp, -]"}});
  expect({{"embed", "[dp+fsdp, -, tp]"}, {"head", "[-, -, -]"}});
  layout.compute_dtype = DType::kBF16;
  layout.zero_stage = 1;
  expect({{"layers.*.down.weight", "[tp, -]"}, {"layers.*.attn", "[dp+fsdp, -, tp]"}});
}

}  // namespace
}  // namespace tacc::graph
