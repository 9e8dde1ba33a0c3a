#include "tests/layouts/training.h"

#include <cmath>
#include <random>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "gtest/gtest.h"

namespace tacc::graph {

using interpreter::Array;
using interpreter::Arrays;

Arrays RandomRows(int step, int64_t first, int64_t rows, int64_t seq_len, int64_t vocabulary) {
  Array tokens = Array::Filled({rows, seq_len}, 0), targets = tokens, samples = Array::Filled({rows}, 0);
  for (int64_t r = 0; r < rows; ++r) {
    samples.at({r}) = static_cast<double>(first + r);
    std::mt19937 random(static_cast<uint32_t>(step * 1000 + first + r));
    for (int64_t s = 0; s < seq_len; ++s) {
      tokens.at({r, s}) = static_cast<double>(random() % vocabulary);
      const uint32_t target = random();
      targets.at({r, s}) = target % 5 == 0 ? -1.0 : static_cast<double>(target % vocabulary);
    }
  }
  return {
      {"tokens", tokens}, {"targets", targets}, {"sample", samples}, {"step", Array{{}, {static_cast<double>(step)}}}};
}

absl::StatusOr<TrainingRun> TrainOnSimulatedRanks(const Program& program, int steps, int64_t micro_batches,
                                                  const BatchSource& batch) {
  interpreter::Simulation simulation(program);
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, 0.5);
  for (const State& state : program.states) {
    if (state.kind != StateKind::kWeight) continue;
    Array weight = Array::Filled(state.logical_dims(), 0);
    for (double& x : weight.values) x = state.init == "ones" ? 1.0 : normal(random);
    TACC_RETURN_IF_ERROR(simulation.SetState(state.name, weight));
    const std::string copy = absl::StrCat("copies/", state.name.substr(8));
    if (program.FindState(copy) != nullptr) TACC_RETURN_IF_ERROR(simulation.SetState(copy, weight));
  }
  TrainingRun run;
  for (int step = 0; step < steps; ++step) {
    TACC_RETURN_IF_ERROR(simulation.Run(program.step, [&](int64_t m) { return batch(step, m); }));
    const Arrays& outputs = simulation.outputs();
    run.losses.push_back(outputs.at("loss").values[0]);
    run.norms.push_back(outputs.at("grad_norm").values[0]);
    if (outputs.count("expert_overflow") > 0) run.overflows.push_back(outputs.at("expert_overflow").values[0]);
    EXPECT_EQ(outputs.at("skipped").values[0], 0.0);
  }
  for (const State& state : program.states) {
    if (state.kind != StateKind::kWeight) continue;
    TACC_ASSIGN_OR_RETURN(run.weights[state.name], simulation.GetState(state.name));
  }
  for (int64_t m = 0; m < micro_batches; ++m) {
    TACC_RETURN_IF_ERROR(simulation.Run(program.eval, [&](int64_t) { return batch(kEvalStep, m); }));
    run.eval_loss += simulation.outputs().at("loss").values[0];
  }
  return run;
}

void ExpectNear(double got, double want, double tolerance, const std::string& what) {
  EXPECT_LE(std::abs(got - want), tolerance * std::max(1.0, std::abs(want)))
      << what << ": " << got << " against " << want;
}

void ExpectSame(const absl::StatusOr<TrainingRun>& many, const absl::StatusOr<TrainingRun>& one,
                const Tolerance& tolerance) {
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_TRUE(many.ok()) << many.status();
  ASSERT_EQ(many->losses.size(), one->losses.size());
  for (size_t step = 0; step < one->losses.size(); ++step) {
    ExpectNear(many->losses[step], one->losses[step], tolerance.losses, absl::StrCat("loss of step ", step));
    ExpectNear(many->norms[step], one->norms[step], tolerance.losses, absl::StrCat("norm of step ", step));
  }
  ExpectNear(many->eval_loss, one->eval_loss, tolerance.losses, "held-out loss");
  ASSERT_EQ(many->weights.size(), one->weights.size());
  for (const auto& [name, weight] : one->weights) {
    ASSERT_EQ(many->weights.count(name), 1u) << name;
    for (size_t i = 0; i < weight.values.size(); ++i)
      ExpectNear(many->weights.at(name).values[i], weight.values[i], tolerance.weights, name);
  }
}

}  // namespace tacc::graph
