// A graph whose inputs a client sends, on simulated ranks in double precision: some have samples, one is the same on
// all ranks, and none is a sequence. On every layout the training of one rank.
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "graph/import/import.h"
#include "graph/ir/text.h"
#include "graph/passes/partition/layout.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "tests/layouts/training.h"

namespace tacc::graph {
namespace {

using interpreter::Array;
using interpreter::Arrays;

constexpr int64_t kRows = 8;
constexpr int kSteps = 3;

constexpr char kPictures[] = R"TEXT(tacc.graph 1
%pixels = input "pixels" : f32[B,6,4]
%mean = input "mean" : f32[6,4]
%labels = input "labels" : i32[B]
%centred = sub %pixels, %mean : f32[B,6,4]
%flat = reshape %centred shape=[B,24] : f32[B,24]
%w0 = param "layers.0.weight" axes=[mlp,embed] : f32[12,24] @layers.0
%y0 = einsum %flat, %w0 spec="bk,nk->bn" : f32[B,12] @layers.0
%h0 = relu %y0 : f32[B,12] @layers.0
%w1 = param "layers.1.weight" axes=[embed,mlp] : f32[10,12] @layers.1
%logits = einsum %h0, %w1 spec="bk,nk->bn" : f32[B,10] @layers.1
%loss, %count, %lse = cross_entropy %logits, %labels : f32[], f32[], f32[B]
output "loss" %loss
output "target_tokens" %count
output "logits" %logits
)TEXT";

Arrays RandomPictures(int step) {
  std::mt19937 random(static_cast<uint32_t>(step));
  std::normal_distribution<double> normal;
  Array pixels = Array::Filled({kRows, 6, 4}, 0), mean = Array::Filled({6, 4}, 0), labels = Array::Filled({kRows}, 0);
  for (Array* array : {&pixels, &mean}) {
    for (double& x : array->values) x = normal(random);
  }
  for (double& x : labels.values) x = static_cast<double>(random() % 11) - 1;  // -1: not counted
  return {{"pixels", pixels}, {"mean", mean}, {"labels", labels}, {"step", Array{{}, {static_cast<double>(step)}}}};
}

absl::StatusOr<Compiled> CompileFor(const std::vector<Mesh::Axis>& axes, bool has_client, const OpTable& ops) {
  ImportOptions import;
  import.batch = kRows;
  import.seq_len = 5;
  auto model = ImportGraphText(kPictures, "pictures.graph", import, ops);
  if (!model.ok()) return model.status();
  CompileOptions options;
  options.training.learning_rate = 1e-2;
  options.training.lr_scheduler_type = "constant";
  options.training.has_client = has_client;
  options.partition = LayoutOf({axes}, "");
  options.partition.units = options.schedule.units = model->units;
  return Compile(model->forward, ops, options);
}

TEST(LiveInputs, TrainOnEveryLayoutAsOnOneRank) {
  const OpTable ops;
  const auto train = [&](const std::vector<Mesh::Axis>& axes) -> absl::StatusOr<TrainingRun> {
    const auto compiled = CompileFor(axes, false, ops);
    if (!compiled.ok()) return compiled.status();
    return TrainOnSimulatedRanks(compiled->stages[0], kSteps, 1,
                                 [](int step, int64_t) { return RandomPictures(step); });
  };
  const auto one = train({});
  ASSERT_TRUE(one.ok()) << one.status();
  const std::vector<std::vector<Mesh::Axis>> layouts = {
      {{"dp", 2}}, {{"fsdp", 4}}, {{"tp", 2}}, {{"fsdp", 2}, {"tp", 2}}, {{"dp", 2}, {"fsdp", 2}}};
  for (const std::vector<Mesh::Axis>& axes : layouts) {
    SCOPED_TRACE(Mesh{axes}.ToString());
    ExpectSame(train(axes), one);
  }
}

// What a client gives with an update: as other options of a job would have it, on every layout.
TEST(LiveInputs, TheClientsUpdate) {
  const OpTable ops;
  const auto train = [&](const std::vector<Mesh::Axis>& axes, double learning_rate, double max_grad_norm,
                         const std::map<std::string, double>& given) -> absl::StatusOr<TrainingRun> {
    ImportOptions import;
    import.batch = kRows;
    import.seq_len = 5;
    auto model = ImportGraphText(kPictures, "pictures.graph", import, ops);
    if (!model.ok()) return model.status();
    CompileOptions options;
    options.training.optim = "sgd";
    options.training.learning_rate = learning_rate;
    options.training.max_grad_norm = max_grad_norm;
    options.training.lr_scheduler_type = "constant";
    options.training.has_client = !given.empty();
    options.partition = LayoutOf({axes}, "");
    options.partition.units = options.schedule.units = model->units;
    const auto compiled = Compile(model->forward, ops, options);
    if (!compiled.ok()) return compiled.status();
    return TrainOnSimulatedRanks(compiled->stages[0], kSteps, 1, [&](int step, int64_t) {
      Arrays inputs = RandomPictures(step);
      for (const auto& [name, value] : given) inputs[name] = Array{{}, {value}};
      return inputs;
    });
  };
  const std::string rate = absl::StrCat(kLearningRateFactorInput, "0.01");
  const auto scaled = train({}, 0.02, 0, {}), clipped = train({}, 0.01, 0.125, {});
  ASSERT_TRUE(clipped.ok()) << clipped.status();
  EXPECT_GT(clipped->norms[0], 0.125) << "nothing is clipped";
  for (const std::vector<Mesh::Axis>& axes : std::vector<std::vector<Mesh::Axis>>{{}, {{"dp", 2}}, {{"fsdp", 4}}}) {
    SCOPED_TRACE(Mesh{axes}.ToString());
    absl::StatusOr<TrainingRun> got =
        train(axes, 0.01, 0, {{rate, 0.5}, {kGradientFactorInput, 4}, {kMaxGradNormInput, 3e38}});
    ASSERT_TRUE(got.ok()) << got.status();
    for (double& norm : got->norms) norm /= 4;
    ExpectSame(got, scaled);
    ExpectSame(train(axes, 0.01, 0, {{rate, 1}, {kGradientFactorInput, 1}, {kMaxGradNormInput, 0.125}}), clipped);
  }
}

// A momentum that a client gives in place of the job's: as another job's, with each optimizer that has one.
TEST(LiveInputs, TheClientsMomentum) {
  const OpTable ops;
  const auto train = [&](const std::string& optim, double momentum,
                         const std::map<std::string, double>& given) -> absl::StatusOr<TrainingRun> {
    ImportOptions import;
    import.batch = kRows;
    import.seq_len = 5;
    auto model = ImportGraphText(kPictures, "pictures.graph", import, ops);
    if (!model.ok()) return model.status();
    CompileOptions options;
    options.training.optim = optim;
    options.training.adam_beta1 = momentum;
    options.training.momentum = momentum;
    options.training.learning_rate = 0.01;
    options.training.max_grad_norm = 0;
    options.training.lr_scheduler_type = "constant";
    options.training.has_client = !given.empty();
    options.partition = LayoutOf({{{"fsdp", 2}}}, "");
    options.partition.units = options.schedule.units = model->units;
    const auto compiled = Compile(model->forward, ops, options);
    if (!compiled.ok()) return compiled.status();
    return TrainOnSimulatedRanks(compiled->stages[0], kSteps, 1, [&](int step, int64_t) {
      Arrays inputs = RandomPictures(step);
      for (const auto& [name, value] : given) inputs[name] = Array{{}, {value}};
      return inputs;
    });
  };
  const std::string input = absl::StrCat(kMomentumInput, "0.01");
  const std::map<std::string, double> rest = {
      {absl::StrCat(kLearningRateFactorInput, "0.01"), 1}, {kGradientFactorInput, 1}, {kMaxGradNormInput, 3e38}};
  for (const char* optim : {"adamw", "adam", "lion", "sgd", "muon"}) {
    SCOPED_TRACE(optim);
    const auto wanted = train(optim, 0.6, {});
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    std::map<std::string, double> given = rest;
    given[input] = 0.6;
    ExpectSame(train(optim, 0.9, given), wanted);
  }
}

// Evaluation returns them where it is asked to, each rank those of its own samples.
TEST(LiveInputs, WhatTheModelReturns) {
  const OpTable ops;
  const auto outputs = [&](bool has_client) {
    const auto compiled = CompileFor({{"dp", 2}}, has_client, ops);
    EXPECT_TRUE(compiled.ok()) << compiled.status();
    std::string text;
    for (const Graph& graph : compiled->stages[0].graphs) {
      for (const Node& node : graph.nodes) {
        if (node.op != Op::kOutput || node.symbol != "logits") continue;
        absl::StrAppend(&text, graph.name, " ", graph.values[node.operands[0]].type.ToString(), "; ");
      }
    }
    return text;
  };
  EXPECT_EQ(outputs(false), "");
  EXPECT_EQ(outputs(true), "eval f32[4,10]; ");
}

}  // namespace
}  // namespace tacc::graph
