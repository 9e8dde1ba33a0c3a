#include "bench/published/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/ir/divisors.h"
#include "graph/planner/search.h"

namespace tacc::bench {
namespace {

using graph::Layout;
using graph::Machine;
using graph::PipelineSchedule;

// What is fitted, and how far from the machine's own value (standard deviation of the logarithm).
struct Free {
  double Machine::*constant;
  double deviation;
};
const Free kFree[] = {{&Machine::matmul_fraction, 0.1},      {&Machine::matmul_tile, 0.5},
                      {&Machine::attention_fraction, 0.2},   {&Machine::bandwidth_fraction, 0.1},
                      {&Machine::issue_seconds, 1.2},        {&Machine::intra_latency_seconds, 0.5},
                      {&Machine::inter_latency_seconds, 0.5}};
constexpr int kNumFree = 7;
constexpr double kUsualError = 0.05;  // of a prediction
constexpr int kIterations = 25;

using Vector = std::vector<double>;

double Bounded(double Machine::*constant, double value) {
  for (const graph::MachineConstant& c : graph::MachineConstants()) {
    if (c.value == constant) return std::clamp(value, c.low, c.high);
  }
  return value;
}

Machine At(const Machine& own, const Vector& x) {
  Machine m = own;
  for (int i = 0; i < kNumFree; ++i)
    m.*kFree[i].constant = Bounded(kFree[i].constant, own.*kFree[i].constant * std::exp(x[i]));
  return m;
}

Vector Residuals(const Table& table, const std::vector<const Row*>& rows, const Vector& x) {
  const Machine machine = At(table.machine, x);
  Vector r;
  for (const Row* row : rows) r.push_back(std::log(Predict(*row, machine, table.execution) / row->seconds));
  return r;
}

double Loss(const Vector& residuals, const Vector& x) {
  double loss = 0;
  for (double r : residuals) {
    const double z = std::abs(r) / kUsualError;
    loss += z < 1 ? z * z / 2 : z - 0.5;
  }
  for (int i = 0; i < kNumFree; ++i) loss += std::pow(x[i] / kFree[i].deviation, 2) / 2;
  return loss;
}

// Solves a x = b by Gaussian elimination; a is symmetric positive definite.
Vector Solve(std::vector<Vector> a, Vector b) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = i + 1; j < n; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < n; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

std::map<std::string, std::vector<const Row*>> ByModel(const Table& table) {
  std::map<std::string, std::vector<const Row*>> models;
  for (const Row& row : table.rows) models[row.model].push_back(&row);
  return models;
}

}  // namespace

double Predict(const Row& row, const Machine& machine, const graph::Execution& execution) {
  const graph::ModelWork work = WorkOf(row.shape);
  const graph::Cluster cluster{machine, 1};
  if (row.layout_is_whole) return graph::EstimateStep(work, cluster, row.layout, execution).seconds;
  double best = std::numeric_limits<double>::infinity();
  const int64_t samples = row.layout.accumulation;  // of a data-parallel rank
  for (int64_t micro_batch : graph::Divisors(samples)) {
    if (micro_batch > 16) break;
    for (int64_t chunks : graph::Divisors(row.shape.layers / row.layout.pp)) {
      if (row.layout.pp == 1 && chunks > 1) break;
      Layout layout = row.layout;
      layout.micro_batch = micro_batch;
      layout.accumulation = samples / micro_batch;
      layout.chunks = chunks;
      layout.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B;
      // Interleaving hands out micro-batches in rounds of the stages.
      if (chunks > 1 && layout.accumulation % layout.pp != 0) continue;
      if (graph::EstimateMemory(work, layout, execution).total() > machine.memory_bytes) continue;
      best = std::min(best, graph::EstimateStep(work, cluster, layout, execution).seconds);
    }
  }
  return best;
}

Machine Fit(const Table& table, const std::vector<const Row*>& rows) {
  Vector x(kNumFree, 0.0);
  Vector r = Residuals(table, rows, x);
  double loss = Loss(r, x), damping = 1e-3;
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    // Gauss-Newton with Huber's weights and Levenberg's damping.
    std::vector<Vector> columns;
    for (int i = 0; i < kNumFree; ++i) {
      constexpr double kStep = 1e-4;
      Vector moved = x;
      moved[i] += kStep;
      columns.push_back(Residuals(table, rows, moved));
      for (size_t k = 0; k < r.size(); ++k) columns[i][k] = (columns[i][k] - r[k]) / kStep;
    }
    std::vector<Vector> normal(kNumFree, Vector(kNumFree, 0.0));
    Vector gradient(kNumFree, 0.0);
    for (size_t k = 0; k < r.size(); ++k) {
      const double weight = 1 / std::max(1.0, std::abs(r[k]) / kUsualError) / (kUsualError * kUsualError);
      for (int i = 0; i < kNumFree; ++i) {
        gradient[i] -= weight * columns[i][k] * r[k];
        for (int j = 0; j < kNumFree; ++j) normal[i][j] += weight * columns[i][k] * columns[j][k];
      }
    }
    for (int i = 0; i < kNumFree; ++i) {
      const double prior = 1 / (kFree[i].deviation * kFree[i].deviation);
      gradient[i] -= prior * x[i];
      normal[i][i] += prior;
    }
    bool better = false;
    double before = loss;
    for (int attempt = 0; attempt < 8 && !better; ++attempt) {
      std::vector<Vector> damped = normal;
      for (int i = 0; i < kNumFree; ++i) damped[i][i] *= 1 + damping;
      const Vector step = Solve(std::move(damped), gradient);
      Vector tried = x;
      for (int i = 0; i < kNumFree; ++i) tried[i] += step[i];
      const Vector residuals = Residuals(table, rows, tried);
      const double tried_loss = Loss(residuals, tried);
      better = tried_loss < loss;
      damping = better ? std::max(damping / 5, 1e-6) : damping * 5;
      if (better) x = tried, r = residuals, loss = tried_loss;
    }
    if (!better || before - loss < 1e-5 * before) break;
  }
  return At(table.machine, x);
}

Comparison Compare(const Table& table) {
  Comparison c;
  const auto models = ByModel(table);
  for (const auto& [model, rows] : models) {
    c.models.push_back(model);
    c.machines.push_back(Fit(table, rows));
    for (const auto& [other, others] : models) {
      if (other == model) continue;
      for (const Row* row : others) c.trials.push_back({row, Predict(*row, c.machines.back(), table.execution)});
    }
  }
  for (const Trial& trial : c.trials) {
    c.mean_absolute_error += std::abs(trial.error()) / static_cast<double>(c.trials.size());
    c.largest_error = std::max(c.largest_error, std::abs(trial.error()));
  }
  return c;
}

std::vector<Pick> Picks(const Table& table) {
  std::map<std::string, std::vector<const Row*>> groups;
  for (const Row& row : table.rows) groups[row.group].push_back(&row);
  std::map<std::string, Machine> machines;  // by the model left out
  std::vector<Pick> picks;
  for (const auto& [group, rows] : groups) {
    if (rows.size() < 2) continue;
    const std::string& model = rows[0]->model;
    if (machines.find(model) == machines.end()) {
      std::vector<const Row*> others;
      for (const Row& row : table.rows) {
        if (row.model != model) others.push_back(&row);
      }
      machines[model] = Fit(table, others);
    }
    Pick pick{group, rows[0], rows[0]};
    double fastest = std::numeric_limits<double>::infinity();
    for (const Row* row : rows) {
      const double seconds = Predict(*row, machines[model], table.execution);
      if (seconds < fastest) fastest = seconds, pick.picked = row;
      if (row->seconds < pick.best->seconds) pick.best = row;
    }
    picks.push_back(pick);
  }
  return picks;
}

double OwnPick(const Row& row, const Machine& machine, const graph::Execution& execution) {
  graph::SearchRequest request;
  request.cluster.machine = machine;
  request.cluster.num_nodes = row.layout.num_ranks() / machine.devices_per_node;
  request.global_batch = row.layout.global_batch();
  request.available_bytes = machine.memory_bytes;
  request.execution = execution;
  const auto result = graph::Search(WorkOf(row.shape), request);
  if (!result.ok() || result->best.empty()) return std::numeric_limits<double>::infinity();
  return result->best[0].step.seconds;
}

}  // namespace tacc::bench
