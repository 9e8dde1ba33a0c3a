// The constants of the cost model fitted to published measurements, and how well each choice of them predicts.
#ifndef TACC_BENCH_PUBLISHED_FIT_H_
#define TACC_BENCH_PUBLISHED_FIT_H_

#include <string>
#include <vector>

#include "bench/published/rows.h"
#include "graph/planner/calibrate.h"

namespace tacc::bench {

// The step of a row. Where the micro-batch was not published: the planner's pick, the fastest micro-batch and
// interleaving that fit the machine's memory.
graph::StepEstimate Estimate(const Row& row, const graph::Setting& setting);
// Its seconds; infinity: no micro-batch fits.
double Predict(const Row& row, const graph::Setting& setting);

// The table's machine with what its data sheet does not say, and its program's host, fitted to `rows`
// (graph/planner/calibrate.h).
graph::Setting Fit(const Table& table, const std::vector<const Row*>& rows);

// Predicted seconds of each row by the fit to ...
struct Trial {
  const Row* row;
  double predicted = 0;
  size_t fit = 0;  // of Comparison::settings, that it is predicted by
  double error() const { return predicted / row->seconds - 1; }
};
// Fitted on each model in turn and tried on all the others: every (fit, row of another model).
struct Comparison {
  std::vector<Trial> trials;
  std::vector<graph::Setting> settings;  // of each model's fit
  std::vector<std::string> models;
  double mean_absolute_error = 0, largest_error = 0;
};
Comparison Compare(const Table& table);

// Measured over predicted seconds of each row, once a row: by the fits on the other models of its table (their mean
// prediction), and by the preset of the table's device, of which nothing is fitted (its network is the table's).
std::vector<double> MeasuredOverCrossed(const Table& table);
std::vector<double> MeasuredOverPreset(const Table& table);

// The smallest ratio that at least `share` of all are at most, where each table has the same weight, however many rows
// it has.
double Quantile(const std::vector<std::vector<double>>& ratios_of_tables, double share);
// The share of all that lies between two ratios, weighed alike.
double ShareWithin(const std::vector<std::vector<double>>& ratios_of_tables, double low, double high);

// The planner's pick among the measured layouts of each group of at least two, by the fits on the other models.
struct Pick {
  std::string group;
  const Row* picked;
  const Row* best;
  double cost() const { return picked->seconds / best->seconds - 1; }
};
std::vector<Pick> Picks(const Table& table);

// Seconds of the planner's own layout for a row's model, devices and batch, by its own estimate; infinity: none fits.
double OwnPick(const Row& row, const graph::Setting& setting);

}  // namespace tacc::bench

#endif  // TACC_BENCH_PUBLISHED_FIT_H_
