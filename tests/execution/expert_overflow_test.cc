// What finds no place in the experts' buffers, as the executor counts it, against the reference interpreter.
#include <memory>
#include <random>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/import/families.h"
#include "graph/ir/status_macros.h"
#include "graph/passes/pipeline.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/interpreter/simulation.h"
#include "tests/ranks/in_process_ranks.h"

namespace tacc::worker {
namespace {

using interpreter::Array;

constexpr int64_t kRows = 4, kSeq = 8, kVocab = 23, kSteps = 3;

absl::StatusOr<std::vector<graph::Program>> CompileWithSmallBuffers(const graph::OpTable& ops) {
  const nlohmann::json config = {{"model_type", "mixtral"},  {"vocab_size", kVocab},        {"hidden_size", 16},
                                 {"intermediate_size", 12},  {"num_hidden_layers", 2},      {"num_attention_heads", 4},
                                 {"num_key_value_heads", 2}, {"num_local_experts", 6},      {"num_experts_per_tok", 2},
                                 {"initializer_range", 0.5}, {"output_router_logits", true}};
  TACC_ASSIGN_OR_RETURN(const graph::ReadFamily read, graph::ReadModelConfig(config, kSeq));
  graph::DecoderBuildOptions build;
  build.batch = kRows;
  build.seq_len = kSeq;
  TACC_ASSIGN_OR_RETURN(const graph::Graph forward, graph::BuildDecoder(read.spec, build, ops));
  graph::CompileOptions options;
  options.training.learning_rate = 1e-3;
  options.training.lr_scheduler_type = "constant";
  options.training.max_steps = kSteps;
  options.experts.ranks = 2;
  options.experts.buffer_factor = 1.0;
  options.partition.mesh = {{{"ep", 2}}};
  options.partition.batch_axes = {0};
  options.partition.in_use_axes["experts"] = {0};
  options.partition.residual = {"model.embed_tokens", {{0}, {}, {}}};
  options.partition.units = options.schedule.units = {"model.layers.0", "model.layers.1"};
  TACC_ASSIGN_OR_RETURN(graph::Compiled compiled, graph::Compile(forward, ops, options));
  return std::move(compiled.stages);
}

MicroBatch RowsOf(int64_t step) {
  MicroBatch batch{0, kRows, kSeq, {}, {}};
  std::mt19937 random(static_cast<uint32_t>(step));
  for (int64_t i = 0; i < kRows * kSeq; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(random() % kVocab));
    batch.targets.push_back(static_cast<int32_t>(random() % kVocab));
  }
  return batch;
}

interpreter::Arrays ArraysOf(int64_t step) {
  const MicroBatch batch = RowsOf(step);
  return {{"tokens", Array{{kRows, kSeq}, {batch.tokens.begin(), batch.tokens.end()}}},
          {"targets", Array{{kRows, kSeq}, {batch.targets.begin(), batch.targets.end()}}},
          {"sample", Array{{kRows}, {0, 1, 2, 3}}},
          {"step", Array{{}, {static_cast<double>(step)}}}};
}

TEST(ExpertOverflow, IsCountedAsByTheInterpreter) {
  const graph::OpTable ops;
  const auto stages = CompileWithSmallBuffers(ops);
  ASSERT_TRUE(stages.ok()) << stages.status();
  const auto ranks = InProcessRanks::Create(&*stages, &ops, InProcessRanks::Memory::kPlanned);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_TRUE((*ranks)->Initialize(5).ok());
  const std::map<std::string, std::vector<float>> weights = (*ranks)->Weights();
  const graph::Program& program = (*stages)[0];
  interpreter::Simulation simulation(program);
  for (const graph::State& state : program.states) {
    if (state.kind != graph::StateKind::kWeight) continue;
    const std::vector<float>& values = weights.at(state.name);
    ASSERT_TRUE(simulation.SetState(state.name, Array{state.logical_dims(), {values.begin(), values.end()}}).ok());
  }
  std::vector<double> wanted;
  for (int64_t step = 0; step < kSteps; ++step) {
    const absl::Status ran = simulation.Run(program.step, [&](int64_t) { return ArraysOf(step); });
    ASSERT_TRUE(ran.ok()) << ran;
    wanted.push_back(simulation.outputs().at("expert_overflow").values[0]);
    EXPECT_GT(wanted.back(), 0);
  }
  TrainingLog log;
  const absl::Status trained = (*ranks)->Train(0, kSteps, [](int64_t step, int64_t) { return RowsOf(step); }, &log);
  ASSERT_TRUE(trained.ok()) << trained;
  EXPECT_EQ(log.outputs.at("expert_overflow"), wanted);
}

}  // namespace
}  // namespace tacc::worker
