// The search over layouts by estimate, of which the best become programs.
#ifndef TACC_GRAPH_PLANNER_SEARCH_H_
#define TACC_GRAPH_PLANNER_SEARCH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/cost/estimate.h"
#include "graph/planner/cost/work.h"

namespace tacc::graph {

// What is asked for; absent: the search decides.
struct SearchRequest {
  Cluster cluster;
  int64_t global_batch = 1;  // samples
  PerAxis<std::optional<int64_t>> sizes;
  std::optional<int64_t> micro_batch, num_micro_batches;
  std::optional<int64_t> zero_stage;
  std::optional<PipelineSchedule> schedule;
  std::optional<int64_t> chunks;  // of the interleaved schedule
  std::optional<bool> recompute, reshard, reduce_each_micro_batch;
  Layout base;  // whose order of axes all layouts have
  // Whether the model can be laid out on the mesh; errors name the legal values. Without it tp must divide the heads,
  // and cp leave each rank two equal blocks of the sequence.
  std::function<absl::Status(const Layout&)> can_lay_out;
  bool cuts_between_layers = true;  // false: pp cuts where the job says
  double available_bytes = 0;       // of a rank, for what EstimateMemory counts; 0: no limit
  // What such layouts are known to need of memory, over what EstimateMemory says; without it 1.
  std::function<double(const Layout&)> memory_factor;
  Execution execution;
  size_t num_best = 10;      // layouts to return,
  size_t num_of_a_mesh = 2;  // at most so many of a mesh
};

// A layout with what is estimated of it.
struct Scored {
  Layout layout;
  StepEstimate step;
  MemoryEstimate memory;
};
// The best layout of a mesh that lost, and why, in one line: it cannot fit, or is slower than the best and mostly
// because of what.
struct Loser {
  Scored scored;
  bool fits = false;
  std::string why;
};
struct SearchResult {
  std::vector<Scored> best;        // fastest first; empty when none fits
  std::vector<Loser> losers;       // one a mesh, fastest first, then those that cannot fit by memory
  std::optional<Scored> smallest;  // by memory, whether it fits or not
  int64_t num_meshes = 0;
  int64_t num_layouts = 0;  // estimated in full
  int64_t num_pruned = 0;   // by a bound on memory or time
};

// All legal meshes x micro-batches x schedules x gc x what fsdp and cp shard of the model on the cluster. Legal: pp dp
// fsdp ep cp tp multiply to the devices; the model can be laid out so; unless asked for, tp lies in a node and cp
// leaves ranks kMinTokens each; ep divides the experts; pp is at most the layers; the ranks of the batch times the
// micro-batch divide the batch. A layout is dropped early when its weights alone do not fit, or when even its matrix
// products at full speed take longer than the best found. Errors: InvalidArgument when what is asked for cannot be,
// with the field, the reason and the nearest legal values.
inline constexpr int64_t kMinTokens = 1024;
absl::StatusOr<SearchResult> Search(const ModelWork& model, const SearchRequest& request);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_SEARCH_H_
