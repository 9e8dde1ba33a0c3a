#include "bench/published/causes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "graph/planner/normal_equations.h"

namespace tacc::bench {
namespace {

using graph::Setting;

constexpr double kPrior = 0.3;        // of a cause's error, one standard deviation
constexpr double kUsualError = 0.05;  // of a prediction
constexpr int kReweightings = 20;

const char* const kCauses[] = {"attention", "small", "products", "memory", "host", "communication", "bubble", "update"};
constexpr size_t kNumCauses = 8;

// d log(step) / d log(value).
double Growth(const Row& row, const Setting& setting, double& (*of)(Setting&)) {
  constexpr double kStep = 1e-4;
  Setting more = setting;
  of(more) *= 1 + kStep;
  return std::log(Predict(row, more) / Predict(row, setting)) / std::log1p(kStep);
}

// In the order of kCauses.
std::vector<double> Shares(const Row& row, const Setting& setting) {
  const graph::StepEstimate e = Estimate(row, setting);
  const auto growth = [&](double& (*of)(Setting&)) { return Growth(row, setting, of); };
  const double attention = -growth([](Setting& s) -> double& { return s.machine.attention_fraction; });
  const double small = growth([](Setting& s) -> double& { return s.machine.matmul_depth; });
  const double products = -growth([](Setting& s) -> double& { return s.machine.matmul_fraction; });
  const double memory = -growth([](Setting& s) -> double& { return s.machine.memory_bytes_per_second; });
  const double host = growth([](Setting& s) -> double& { return s.machine.issue_seconds; }) +
                      growth([](Setting& s) -> double& { return s.execution.micro_batch_seconds; });
  const double update = e.update / e.seconds;
  return {attention,
          small,
          products - attention - small,
          memory - update,
          host,
          e.communication() / e.seconds,
          (e.bubble + e.imbalance) / e.seconds,
          update};
}

}  // namespace

std::vector<Cause> ErrorByCause(const Comparison& comparison) {
  std::map<const Row*, double> trials_of;
  for (const Trial& trial : comparison.trials) trials_of[trial.row] += 1;
  std::vector<std::vector<double>> shares;
  std::vector<double> residuals;
  for (const Trial& trial : comparison.trials) {
    shares.push_back(Shares(*trial.row, comparison.settings[trial.fit]));
    residuals.push_back(1 / (1 + trial.error()) - 1);
  }
  std::vector<double> missing(kNumCauses, 0.0);
  graph::Matrix normal;
  for (int round = 0; round < kReweightings; ++round) {
    normal.assign(kNumCauses, std::vector<double>(kNumCauses, 0.0));
    std::vector<double> right(kNumCauses, 0.0);
    for (size_t i = 0; i < kNumCauses; ++i) normal[i][i] = 1 / (kPrior * kPrior);
    for (size_t t = 0; t < shares.size(); ++t) {
      const double left = residuals[t] - std::inner_product(missing.begin(), missing.end(), shares[t].begin(), 0.0);
      const double weight = 1 / std::max(1.0, std::abs(left) / kUsualError) / (kUsualError * kUsualError) /
                            trials_of[comparison.trials[t].row];
      for (size_t i = 0; i < kNumCauses; ++i) {
        right[i] += weight * shares[t][i] * residuals[t];
        for (size_t j = 0; j < kNumCauses; ++j) normal[i][j] += weight * shares[t][i] * shares[t][j];
      }
    }
    missing = graph::Solve(normal, right);
  }
  std::vector<Cause> causes;
  for (size_t i = 0; i < kNumCauses; ++i) {
    Cause cause{kCauses[i], 0, missing[i], std::sqrt(graph::InverseDiagonal(normal, i))};
    for (const auto& of_trial : shares) cause.share += of_trial[i] / static_cast<double>(shares.size());
    causes.push_back(cause);
  }
  return causes;
}

}  // namespace tacc::bench
