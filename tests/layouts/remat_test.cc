// Activation recomputation: what it computes is what is computed without it, to the bit, dropout included; and of a
// unit no more than what enters it is kept.
#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "graph/analysis/cost.h"
#include "graph/ir/text.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/interpreter/simulation.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;

constexpr int64_t kBatch = 4, kSeq = 6, kVocab = 13, kWidth = 8;

// A stack of layers: norm, attention with dropout, also of its result, gated MLP.
std::string ModelText(int num_layers) {
  std::string text = R"TEXT(tacc.graph 1
%tokens = input "tokens" : i32[4,6]
%targets = input "targets" : i32[4,6]
%step = input "step" : i64[]
%sample = input "sample" : i64[4]
%table = param "embed.weight" init="normal(0.5)" : f32[13,8]
%h0 = embedding %table, %tokens : f32[4,6,8] @embed
)TEXT";
  for (int i = 0; i < num_layers; ++i) {
    const std::string layer = R"TEXT(%nw$ = param "layers.$.norm.weight" init=ones : f32[8] @layers.$.norm
%n$, %r$ = rms_norm %h$, %nw$ eps=1e-05 : f32[4,6,8], f32[4,6] @layers.$.norm
%w$ = param "layers.$.qkv.weight" init="normal(0.5)" stored=[24,8] : f32[3,2,4,8] @layers.$.attn
%p$ = einsum %n$, %w$ spec="bsk,thdk->bsthd" : f32[4,6,3,2,4] @layers.$.attn
%qs$ = slice %p$ dim=2 start=0 limit=1 : f32[4,6,1,2,4] @layers.$.attn
%ks$ = slice %p$ dim=2 start=1 limit=2 : f32[4,6,1,2,4] @layers.$.attn
%vs$ = slice %p$ dim=2 start=2 limit=3 : f32[4,6,1,2,4] @layers.$.attn
%q$ = reshape %qs$ shape=[4,6,2,4] : f32[4,6,2,4] @layers.$.attn
%k$ = reshape %ks$ shape=[4,6,2,4] : f32[4,6,2,4] @layers.$.attn
%v$ = reshape %vs$ shape=[4,6,2,4] : f32[4,6,2,4] @layers.$.attn
%a$, %l$ = attention %q$, %k$, %v$, %step, %sample causal=true dropout=0.3 dropout_key=$ dropout_seed=6 scale=0.5 : f32[4,6,2,4], f32[4,2,6] @layers.$.attn
%wo$ = param "layers.$.o.weight" init="normal(0.5)" stored=[8,8] : f32[8,2,4] @layers.$.attn
%o$ = einsum %a$, %wo$ spec="bshd,khd->bsk" : f32[4,6,8] @layers.$.attn
%e$ = dropout %o$, %step, %sample key=$ rate=0.25 seed=5 : f32[4,6,8] @layers.$
%x$ = add %h$, %e$ : f32[4,6,8] @layers.$
%wg$ = param "layers.$.gate.weight" init="normal(0.5)" : f32[23,8] @layers.$.mlp
%g$ = einsum %x$, %wg$ spec="bsk,nk->bsn" : f32[4,6,23] @layers.$.mlp
%wu$ = param "layers.$.up.weight" init="normal(0.5)" : f32[23,8] @layers.$.mlp
%u$ = einsum %x$, %wu$ spec="bsk,nk->bsn" : f32[4,6,23] @layers.$.mlp
%s$ = swiglu %g$, %u$ : f32[4,6,23] @layers.$.mlp
%wd$ = param "layers.$.down.weight" init="normal(0.5)" : f32[8,23] @layers.$.mlp
%d$ = einsum %s$, %wd$ spec="bsn,kn->bsk" : f32[4,6,8] @layers.$.mlp
%h+ = add %x$, %d$ : f32[4,6,8] @layers.$
)TEXT";
    absl::StrAppend(&text, absl::StrReplaceAll(layer, {{"$", absl::StrCat(i)}, {"+", absl::StrCat(i + 1)}}));
  }
  return absl::StrCat(text, absl::StrReplaceAll(R"TEXT(%wh = param "head.weight" init="normal(0.5)" : f32[13,8]
%logits = einsum %h$, %wh spec="bsk,vk->bsv" : f32[4,6,13] @head
%loss, %count, %lse = cross_entropy %logits, %targets : f32[], f32[], f32[4,6]
output "loss" %loss
output "target_tokens" %count
)TEXT",
                                                {{"$", absl::StrCat(num_layers)}}));
}

struct Case {
  int num_layers;
  int num_repeated;  // units whose activations are computed again: the first ones
  int64_t fsdp = 1;
  DType compute_dtype = DType::kF32;
  int64_t accumulation = 1;
  int64_t kept_units = 0;  // layers that keep the weights they have gathered
};

struct Outcome {
  Compiled compiled;
  double model_flops = 0;
};

Outcome CompileCase(const Case& c, const OpTable& ops) {
  CompileOptions options;
  options.training.learning_rate = 1e-2;
  options.training.max_steps = 10;
  options.training.accumulation = c.accumulation;
  options.compute_dtype = c.compute_dtype;
  options.partition.mesh = {{{"dp", 1}, {"fsdp", c.fsdp}}};
  options.partition.batch_axes = {0, 1};
  options.partition.at_rest_axes = {1};
  for (int i = 0; i < c.num_layers; ++i) options.schedule.units.push_back(absl::StrCat("layers.", i));
  for (int i = 0; i < c.num_repeated; ++i) options.remat.units.push_back(absl::StrCat("layers.", i));
  options.schedule.kept_units = c.kept_units;
  Outcome outcome;
  PipelineObserver observer;
  observer.after_pass = [&](const PassRun& run, const std::vector<Program>& stages) {
    if (run.pass.name == "remat") outcome.model_flops = ModelFlops(stages[0], ops);
  };
  absl::StatusOr<Graph> forward = ParseGraph(ModelText(c.num_layers), {});
  EXPECT_TRUE(forward.ok()) << forward.status();
  absl::StatusOr<Compiled> compiled = Compile(*forward, ops, options, observer);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  outcome.compiled = *std::move(compiled);
  return outcome;
}

// The weights after two steps.
std::map<std::string, Array> Train(const Program& program) {
  interpreter::Simulation simulation(program);
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 0.5);
  for (const State& state : program.states) {
    if (state.kind != StateKind::kWeight) continue;
    Array weight = Array::Filled(state.logical_dims(), 0);
    for (double& x : weight.values) x = normal(random);
    EXPECT_TRUE(simulation.SetState(state.name, weight).ok());
    const std::string copy = absl::StrCat("copies/", state.name.substr(8));
    if (program.FindState(copy) != nullptr) {
      EXPECT_TRUE(simulation.SetState(copy, weight).ok());
    }
  }
  for (int step = 0; step < 2; ++step) {
    const absl::Status status = simulation.Run(program.step, [&](int64_t) {
      Arrays inputs;
      for (const char* name : {"tokens", "targets"}) {
        inputs[name] = Array::Filled({kBatch, kSeq}, 0);
        for (double& x : inputs[name].values) x = static_cast<double>(random() % kVocab);
      }
      inputs["step"] = Array{{}, {static_cast<double>(step)}};
      inputs["sample"] = Array{{kBatch}, {4, 5, 6, 7}};
      return inputs;
    });
    EXPECT_TRUE(status.ok()) << status;
  }
  std::map<std::string, Array> weights;
  for (const State& state : program.states) {
    if (state.kind == StateKind::kWeight) weights[state.name] = simulation.GetState(state.name).value();
  }
  return weights;
}

TEST(RematTest, ComputesTheSameToTheBit) {
  const OpTable ops;
  for (const auto& [fsdp, dtype] : {std::pair(1, DType::kF32), std::pair(2, DType::kF32), std::pair(2, DType::kBF16)}) {
    const auto kept = Train(CompileCase({3, 0, fsdp, dtype}, ops).compiled.stages[0]);
    for (int num_repeated : {1, 3}) {
      const auto repeated = Train(CompileCase({3, num_repeated, fsdp, dtype}, ops).compiled.stages[0]);
      ASSERT_EQ(kept.size(), repeated.size());
      for (const auto& [name, weight] : kept) EXPECT_EQ(repeated.at(name).values, weight.values) << name;
    }
  }
}

// What is computed again uses the weights that are kept: no weight is gathered twice.
TEST(RematTest, UsesTheWeightsThatAreKept) {
  const OpTable ops;
  const auto num_gathers = [](const Program& program) {
    const std::vector<Node>& nodes = program.FindGraph("forward_backward")->nodes;
    return std::count_if(nodes.begin(), nodes.end(), [](const Node& node) { return node.op == Op::kAllGather; });
  };
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const Program again = CompileCase({3, 3, 2, dtype}, ops).compiled.stages[0];
    const Program kept = CompileCase({3, 3, 2, dtype, 1, 3}, ops).compiled.stages[0];
    // Those of the embedding and the head are gathered once anyway.
    EXPECT_EQ(num_gathers(again), 2 * num_gathers(kept) - 2);
    EXPECT_EQ(num_gathers(kept), std::count_if(kept.states.begin(), kept.states.end(),
                                               [](const State& state) { return state.kind == StateKind::kWeight; }));
    const auto wanted = Train(again), got = Train(kept);
    for (const auto& [name, weight] : wanted) EXPECT_EQ(got.at(name).values, weight.values) << name;
  }
}

// Kept from the forward: of each repeated layer its input alone. So a layer more costs that, once there are enough of
// them that the peak is in the backward. (With accumulation gradients are states, so that temporaries are activations.)
TEST(RematTest, KeepsOnlyWhatEntersAUnit) {
  const OpTable ops;
  auto temporaries = [&](int num_layers, int num_repeated) {
    const Case c = {num_layers, num_repeated, /*fsdp=*/1, DType::kF32, /*accumulation=*/2};
    return CompileCase(c, ops).compiled.memory[0].temporaries_bytes;
  };
  const int64_t input_bytes = kBatch * kSeq * kWidth * 4;
  EXPECT_EQ(temporaries(9, 9) - temporaries(6, 6), 3 * input_bytes);
  EXPECT_GE(temporaries(9, 0) - temporaries(6, 0), 3 * 10 * input_bytes);
  EXPECT_LT(temporaries(9, 5), temporaries(9, 0));
  EXPECT_GT(temporaries(9, 5), temporaries(9, 9));
}

TEST(RematTest, RepeatsTheForwardOnceAndIsNoWorkOfTheModel) {
  const OpTable ops;
  const Outcome kept = CompileCase({4, 0}, ops), repeated = CompileCase({4, 4}, ops);
  EXPECT_GT(kept.model_flops, 0);
  EXPECT_EQ(repeated.model_flops, kept.model_flops);
  auto flops = [&](const Outcome& o) { return StepCostOf(o.compiled.stages[0], ops, DeviceProfile()).matmul_flops; };
  // The repeated forward: a third of the layers' work, but for the last product of each, whose result nothing reads.
  const double tokens = kBatch * kSeq;
  const double down = 2 * tokens * kWidth * 23, head = 3 * 2 * tokens * kWidth * kVocab;
  EXPECT_NEAR(flops(repeated) - flops(kept), (kept.model_flops - head) / 3 - 4 * down, 1.0);
}

}  // namespace
}  // namespace tacc::graph
