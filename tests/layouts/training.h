// Trainings on simulated ranks, whose losses must not depend on the layout.
#ifndef TACC_TESTS_LAYOUTS_TRAINING_H_
#define TACC_TESTS_LAYOUTS_TRAINING_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/interpreter/array.h"
#include "graph/ir/program.h"
#include "tests/interpreter/simulation.h"

namespace tacc::graph {

// What a run on simulated ranks, in double precision, leaves.
struct TrainingRun {
  std::vector<double> losses, norms;  // of each step
  std::vector<double> overflows;      // of each step, where there are experts' buffers
  std::map<std::string, interpreter::Array> weights;
  double eval_loss = 0;
};

// The whole batch of a micro-batch; evaluations are step kEvalStep.
using BatchSource = std::function<interpreter::Arrays(int step, int64_t micro_batch)>;
inline constexpr int kEvalStep = 99;

// Rows [first, first + rows) of the global batch of `step`, tokens and targets [rows, seq_len], with the inputs
// "sample" and "step"; one target in five is ignored, so that ranks hold different counts.
interpreter::Arrays RandomRows(int step, int64_t first, int64_t rows, int64_t seq_len, int64_t vocabulary);

// Trains `steps` steps from random weights, those of init="ones" being ones, and evaluates. `program`: all of the
// model. Expects that no step is skipped. Errors: of the simulation.
absl::StatusOr<TrainingRun> TrainOnSimulatedRanks(const Program& program, int steps, int64_t micro_batches,
                                                  const BatchSource& batch);

// Relative, or absolute below 1.
struct Tolerance {
  double losses = 1e-11, weights = 1e-11;
};
void ExpectNear(double got, double want, double tolerance, const std::string& what);
// Losses, norms, evaluation and every weight.
void ExpectSame(const absl::StatusOr<TrainingRun>& many, const absl::StatusOr<TrainingRun>& one,
                const Tolerance& tolerance = {});

}  // namespace tacc::graph

#endif  // TACC_TESTS_LAYOUTS_TRAINING_H_
