// The planner's picks beside the best of all layouts (tests/planner/oracle.h), for random jobs.
//   oracle [--jobs N] [--seed N] [--layers N] [--devices N]
// N jobs (200) from this seed on (1), of at most so many layers (12) on so many devices (16).
#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tests/planner/oracle.h"

namespace tacc::bench {
namespace {

int Main(int argc, char** argv) {
  std::map<std::string, uint64_t> values = {{"--jobs", 200}, {"--seed", 1}, {"--layers", 12}, {"--devices", 16}};
  for (int i = 1; i < argc; i += 2) {
    const auto value = values.find(argv[i]);
    if (value == values.end() || i + 1 == argc) {
      std::cerr << "usage: oracle [--jobs N] [--seed N] [--layers N] [--devices N]\n";
      return 2;
    }
    value->second = std::strtoull(argv[i + 1], nullptr, 10);
  }
  const graph::OpTable ops;
  std::vector<double> ratios;
  size_t num_layouts = 0, num_fitting = 0, num_without = 0, num_best = 0;
  for (uint64_t seed = values["--seed"]; seed < values["--seed"] + values["--jobs"]; ++seed) {
    const graph::RandomJob job =
        graph::MakeRandomJob(seed, static_cast<int64_t>(values["--layers"]), static_cast<int64_t>(values["--devices"]));
    const std::clock_t start = std::clock();
    const auto verdict = graph::AskOracle(job, ops);
    if (absl::IsNotFound(verdict.status())) {
      ++num_without;
      std::cout << job.name << ": nothing fits" << std::endl;
      continue;
    }
    if (!verdict.ok()) {
      std::cerr << "error: " << job.name << ": " << verdict.status().message() << "\n";
      return 1;
    }
    std::cout << absl::StrFormat(
                     "%s: %d layouts, %d fit, %d tried, pick %.4f s, best %.4f s, costs %.4fx; %s%s (%.1f s)\n",
                     job.name, verdict->num_layouts, verdict->num_fitting, verdict->num_tried, verdict->pick_seconds,
                     verdict->best_seconds, verdict->ratio, verdict->pick.ToString(),
                     verdict->pick == verdict->best
                         ? ""
                         : absl::StrFormat(
                               "; best %s, whose estimates are %.3f of the simulated step and %.3f of the memory",
                               verdict->best.ToString(), verdict->best_estimate, verdict->best_memory),
                     static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC)
              << std::flush;
    ratios.push_back(verdict->ratio);
    num_layouts += verdict->num_layouts;
    num_fitting += verdict->num_fitting;
    num_best += verdict->pick == verdict->best;
  }
  if (ratios.empty()) return 0;
  std::sort(ratios.begin(), ratios.end());
  const auto within = std::count_if(ratios.begin(), ratios.end(), [](double ratio) { return ratio <= 1.01; });
  std::cout << absl::StrFormat(
      "%d jobs, %d more of which nothing fits; %d layouts simulated, %d fit. The pick is the best in %d, within 1 %% "
      "in "
      "%d, within %.2f %% in all\n",
      ratios.size(), num_without, num_layouts, num_fitting, num_best, within, 100 * (ratios.back() - 1));
  return within == static_cast<int64_t>(ratios.size()) ? 0 : 1;
}

}  // namespace
}  // namespace tacc::bench

int main(int argc, char** argv) { return tacc::bench::Main(argc, argv); }
