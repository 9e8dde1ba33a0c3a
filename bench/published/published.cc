// Prints the cost model against published step times, row by row: fitted on one model of a table and tried on the
// others, in turn; then the error by cause (causes.h), so that the next wrong constant shows itself.
#include <cmath>
#include <iostream>
#include <map>

#include "absl/strings/str_format.h"
#include "bench/published/causes.h"
#include "bench/published/fit.h"

namespace tacc::bench {
namespace {

// Quantiles of measured over predicted seconds over all tables, each of which counts alike; and of each.
void PrintSpread(const char* what, const std::vector<Table>& tables,
                 std::vector<double> (*ratios_of)(const Table& table)) {
  std::vector<std::vector<double>> all;
  for (const Table& table : tables) all.push_back(ratios_of(table));
  const auto print = [](const std::string& of, const std::vector<std::vector<double>>& ratios) {
    std::cout << "  " << of << ":";
    for (int percent : {5, 10, 25, 50, 75, 90, 95})
      std::cout << absl::StrFormat(" %d %% %.3f", percent, Quantile(ratios, percent / 100.0));
    std::cout << "\n";
  };
  std::cout << "measured / predicted seconds, " << what << ", quantiles\n";
  for (size_t i = 0; i < tables.size(); ++i) print(tables[i].name, {all[i]});
  print("all, tables counting alike", all);
}

int Main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: published FOLDER\n";
    return 2;
  }
  const auto tables = ReadTables(argv[1]);
  if (!tables.ok()) {
    std::cerr << "error: " << tables.status().message() << "\n";
    return 2;
  }
  for (const Table& table : *tables) {
    const Comparison c = Compare(table);
    std::cout << "== " << table.name << "\n";
    for (size_t i = 0; i < c.models.size(); ++i) {
      std::cout << "fitted on " << c.models[i] << ": ";
      for (const graph::MachineConstant& constant : graph::MachineConstants()) {
        std::cout << absl::StrFormat("%s %.4g %s; ", constant.name, c.settings[i].machine.*constant.value,
                                     constant.unit);
      }
      std::cout << absl::StrFormat("micro_batch_seconds %.4g s\n", c.settings[i].execution.micro_batch_seconds);
    }
    // A row is tried by the fit of every other model: print the mean.
    std::map<const Row*, std::vector<const Trial*>> by_row;
    for (const Trial& trial : c.trials) by_row[trial.row].push_back(&trial);
    int beyond = 0;
    std::cout << "measured s  predicted s  error      row\n";
    for (const Row& row : table.rows) {
      double mean = 0;
      for (const Trial* trial : by_row[&row]) mean += trial->error() / static_cast<double>(by_row[&row].size());
      if (std::abs(mean) > 0.25) ++beyond;
      std::cout << absl::StrFormat("%10.4f  %11.4f  %+6.1f %%  %s, %s\n", row.seconds, row.seconds * (1 + mean),
                                   100 * mean, row.group, row.layout.ToString());
    }
    std::cout << absl::StrFormat(
        "mean absolute error %.2f %% (bar %.0f %%), largest %.1f %%; rows beyond 25 %%: %d of %d%s\n",
        100 * c.mean_absolute_error, 100 * table.bar, 100 * c.largest_error, beyond, table.rows.size(),
        table.calculon.empty() ? "" : "; Calculon, uncalibrated: " + table.calculon);
    std::cout << "cause          of the step  measured beyond it, of its own seconds\n";
    for (const Cause& cause : ErrorByCause(c)) {
      if (cause.share < 0.001) continue;
      std::cout << absl::StrFormat("%-13s  %9.1f %%  %+6.1f %% +- %.1f%s\n", cause.name, 100 * cause.share,
                                   100 * cause.missing, 100 * cause.deviation,
                                   std::abs(cause.missing) > 2 * cause.deviation ? "  *" : "");
    }
    const std::vector<Pick> picks = Picks(table);
    double worst = 0;
    int good = 0;
    for (const Pick& pick : picks) {
      worst = std::max(worst, pick.cost());
      if (pick.cost() <= 0.02) {
        ++good;
        continue;
      }
      std::cout << absl::StrFormat("pick of %s: %s, %.4f s, %+.1f %% of the best, %s\n", pick.group,
                                   pick.picked->layout.ToString(), pick.picked->seconds, 100 * pick.cost(),
                                   pick.best->layout.ToString());
    }
    if (!picks.empty()) {
      std::cout << absl::StrFormat("picks within 2 %% of the best measured: %d of %d, worst %+.1f %%\n", good,
                                   picks.size(), 100 * worst);
    }
    for (const Row& row : table.rows) {
      if (row.layout_is_whole) continue;
      const double own = OwnPick(row, table.setting());
      const double published = Predict(row, table.setting());
      std::cout << absl::StrFormat("own pick for %s: %.2f s, the published mesh %.2f s (%+.1f %%)\n", row.group, own,
                                   published, 100 * (own / published - 1));
    }
    std::cout << "\n";
  }
  PrintSpread("constants fitted on another model", *tables, MeasuredOverCrossed);
  PrintSpread("constants of the preset, nothing fitted", *tables, MeasuredOverPreset);
  return 0;
}

}  // namespace
}  // namespace tacc::bench

int main(int argc, char** argv) { return tacc::bench::Main(argc, argv); }
