// The planner's choice against all layouts of small random jobs.
#ifndef TACC_TESTS_PLANNER_ORACLE_H_
#define TACC_TESTS_PLANNER_ORACLE_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "graph/planner/planner.h"

namespace tacc::graph {

// A job that is small enough for all of its layouts to become programs: up to 16 devices and 12 layers. Its memory may
// be short, its network slow.
struct RandomJob {
  std::string name;  // says all of it
  nlohmann::json config;
  PlanRequest request;
};
// Dense models, mixtures of experts and long sequences in turn, on GPUs and now and then on CPUs. `max_layers`,
// `max_devices`: at most that.
RandomJob MakeRandomJob(uint64_t seed, int64_t max_layers, int64_t max_devices);

// A pick beside the best of all layouts that the search takes and whose programs fit, every one simulated.
struct Verdict {
  size_t num_layouts = 0;  // that became programs
  size_t num_fitting = 0;
  Layout pick, best;
  double pick_seconds = 0, best_seconds = 0;
  double ratio = 1;  // of what they cost (Worth)
  // Why the best may have been missed: what is estimated of it over what is simulated, its estimate of memory over that
  // of a device, and how many layouts the planner made programs of.
  double best_estimate = 1, best_memory = 0;
  size_t num_tried = 0;
};
// Layouts that do not fit by estimate are tried as well where the estimate is at most kOverestimate of the memory.
inline constexpr double kOverestimate = 1.3;
// NotFound: nothing fits. Errors: those of PlanCandidates.
absl::StatusOr<Verdict> AskOracle(const RandomJob& job, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_TESTS_PLANNER_ORACLE_H_
