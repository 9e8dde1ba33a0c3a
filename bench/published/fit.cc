#include "bench/published/fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/ir/divisors.h"
#include "graph/planner/search.h"

namespace tacc::bench {
namespace {

using graph::Axis;
using graph::Layout;
using graph::PipelineSchedule;
using graph::Setting;

std::map<std::string, std::vector<const Row*>> ByModel(const Table& table) {
  std::map<std::string, std::vector<const Row*>> models;
  for (const Row& row : table.rows) models[row.model].push_back(&row);
  return models;
}

}  // namespace

graph::StepEstimate Estimate(const Row& row, const Setting& setting) {
  const auto& [machine, execution] = setting;
  const graph::ModelWork work = WorkOf(row.shape);
  const graph::Cluster cluster{machine, 1};
  if (row.layout_is_whole) return graph::EstimateStep(work, cluster, row.layout, execution);
  graph::StepEstimate best;
  best.seconds = std::numeric_limits<double>::infinity();
  const int64_t samples = row.layout.accumulation;  // of a data-parallel rank
  for (int64_t micro_batch : graph::Divisors(samples)) {
    if (micro_batch > 16) break;
    for (int64_t chunks : graph::Divisors(row.shape.layers / row.layout.sizes[Axis::kPp])) {
      if (row.layout.sizes[Axis::kPp] == 1 && chunks > 1) break;
      Layout layout = row.layout;
      layout.micro_batch = micro_batch;
      layout.accumulation = samples / micro_batch;
      layout.chunks = chunks;
      layout.schedule = chunks > 1 ? PipelineSchedule::kInterleaved : PipelineSchedule::k1F1B;
      // Interleaving hands out micro-batches in rounds of the stages.
      if (chunks > 1 && layout.accumulation % layout.sizes[Axis::kPp] != 0) continue;
      if (graph::EstimateMemory(work, layout, execution).total() > machine.memory_bytes) continue;
      const graph::StepEstimate e = graph::EstimateStep(work, cluster, layout, execution);
      if (e.seconds < best.seconds) best = e;
    }
  }
  return best;
}

double Predict(const Row& row, const Setting& setting) { return Estimate(row, setting).seconds; }

Setting Fit(const Table& table, const std::vector<const Row*>& rows) {
  std::vector<graph::FreeConstant> constants = graph::UnlistedConstants();
  constants.push_back(graph::HostConstant());
  std::vector<graph::MeasuredStep> steps;
  for (const Row* row : rows) {
    steps.push_back({row->seconds, [row](const Setting& setting) { return Predict(*row, setting); }});
  }
  return graph::FitConstants(table.setting(), constants, steps).setting;
}

Comparison Compare(const Table& table) {
  Comparison c;
  const auto models = ByModel(table);
  for (const auto& [model, rows] : models) {
    c.models.push_back(model);
    c.settings.push_back(Fit(table, rows));
    for (const auto& [other, others] : models) {
      if (other == model) continue;
      for (const Row* row : others) c.trials.push_back({row, Predict(*row, c.settings.back()), c.settings.size() - 1});
    }
  }
  for (const Trial& trial : c.trials) {
    c.mean_absolute_error += std::abs(trial.error()) / static_cast<double>(c.trials.size());
    c.largest_error = std::max(c.largest_error, std::abs(trial.error()));
  }
  return c;
}

std::vector<double> MeasuredOverCrossed(const Table& table) {
  std::map<const Row*, std::pair<double, int>> predicted;  // sum and number
  for (const Trial& trial : Compare(table).trials) {
    predicted[trial.row].first += trial.predicted;
    ++predicted[trial.row].second;
  }
  std::vector<double> ratios;
  for (const auto& [row, sum] : predicted) ratios.push_back(row->seconds * sum.second / sum.first);
  return ratios;
}

std::vector<double> MeasuredOverPreset(const Table& table) {
  graph::Machine machine = table.machine;
  for (const graph::Machine& preset : graph::MachinePresets()) {
    if (preset.name == table.machine.name) machine = preset;
  }
  machine.inter_bytes_per_second = table.machine.inter_bytes_per_second;
  std::vector<double> ratios;
  for (const Row& row : table.rows)
    ratios.push_back(row.seconds / Predict(row, graph::Setting{machine, table.execution}));
  return ratios;
}

double Quantile(const std::vector<std::vector<double>>& ratios_of_tables, double share) {
  std::vector<std::pair<double, double>> weighted;  // ratio, weight
  for (const std::vector<double>& ratios : ratios_of_tables) {
    for (double ratio : ratios) {
      weighted.push_back({ratio, 1 / static_cast<double>(ratios.size() * ratios_of_tables.size())});
    }
  }
  std::sort(weighted.begin(), weighted.end());
  double below = 0;
  for (const auto& [ratio, weight] : weighted) {
    below += weight;
    if (below >= share) return ratio;
  }
  return weighted.empty() ? std::numeric_limits<double>::quiet_NaN() : weighted.back().first;
}

double ShareWithin(const std::vector<std::vector<double>>& ratios_of_tables, double low, double high) {
  double share = 0;
  for (const std::vector<double>& ratios : ratios_of_tables) {
    const auto within = std::count_if(ratios.begin(), ratios.end(), [&](double r) { return low <= r && r <= high; });
    share += static_cast<double>(within) / static_cast<double>(ratios.size() * ratios_of_tables.size());
  }
  return share;
}

std::vector<Pick> Picks(const Table& table) {
  std::map<std::string, std::vector<const Row*>> groups;
  for (const Row& row : table.rows) groups[row.group].push_back(&row);
  std::map<std::string, Setting> settings;  // by the model left out
  std::vector<Pick> picks;
  for (const auto& [group, rows] : groups) {
    if (rows.size() < 2) continue;
    const std::string& model = rows[0]->model;
    if (settings.find(model) == settings.end()) {
      std::vector<const Row*> others;
      for (const Row& row : table.rows) {
        if (row.model != model) others.push_back(&row);
      }
      settings[model] = Fit(table, others);
    }
    Pick pick{group, rows[0], rows[0]};
    double fastest = std::numeric_limits<double>::infinity();
    for (const Row* row : rows) {
      const double seconds = Predict(*row, settings[model]);
      if (seconds < fastest) fastest = seconds, pick.picked = row;
      if (row->seconds < pick.best->seconds) pick.best = row;
    }
    picks.push_back(pick);
  }
  return picks;
}

double OwnPick(const Row& row, const Setting& setting) {
  const auto& [machine, execution] = setting;
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
