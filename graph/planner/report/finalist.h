// A candidate as reports show it: its memory, compute and communication in rows.
#ifndef TACC_GRAPH_PLANNER_REPORT_FINALIST_H_
#define TACC_GRAPH_PLANNER_REPORT_FINALIST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/planner/planner.h"
#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// A candidate with its programs and its simulated step: all that can be said about it.
struct Finalist {
  Candidate candidate;
  Cluster cluster;
  std::vector<Program> stages;
  NodeTimes times;
  Simulation simulation;

  std::vector<const Program*> programs() const;
  // The stage that computes longest: the others wait for it.
  int slowest_stage() const;
};
// Of a candidate and its stages. `ops` must outlive the result.
absl::StatusOr<Finalist> MakeFinalist(const PlanRequest& request, const Candidate& candidate,
                                      std::vector<Program> stages, const OpTable& ops);

// What a collective carries.
enum class Cargo { kWeights, kGradients, kActivations, kScalars };
absl::string_view Name(Cargo cargo);
Cargo CargoOf(const Program& program, const Graph& graph, const Node& collective);
// A result of at most this many bytes counts as scalars: norms, counts, losses.
inline constexpr int64_t kScalarBytes = 8;

// Collectives of a step alike, on one rank of a stage.
struct CommunicationRow {
  std::string op;
  std::string axes;  // "fsdp", "dp fsdp"
  Cargo cargo = Cargo::kActivations;
  int64_t count = 0;
  int64_t sent_bytes = 0;
  double seconds = 0;  // in which they run; overlapping ones count twice
  double exposed = 0;  // of those: in which the rank computes nothing
};
// The longest first.
std::vector<CommunicationRow> CommunicationOf(const Finalist& finalist, int stage);

// Where a rank's compute goes: matrix products, attention, elementwise and norms, optimizer.
struct ComputeRow {
  std::string kind;
  double seconds = 0;
};
// The longest first.
std::vector<ComputeRow> ComputeOf(const Finalist& finalist, int stage, const OpTable& ops);

// An operator of LibTorch for which the graph has no op, with its derivative, on one rank of a stage.
struct LibTorchRow {
  std::string schema;  // "aten::sort.default"
  int64_t count = 0;   // its nodes `aten` in the stage's graphs: a micro-batch's
  double seconds = 0;  // of a step
  double share_of_step = 0;
  int64_t result_bytes = 0;   // of all its nodes, computed once
  int64_t scratch_bytes = 0;  // the most that one of its nodes is given beside them, an estimate
};
// The longest first.
std::vector<LibTorchRow> LibTorchOf(const Finalist& finalist, int stage, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_REPORT_FINALIST_H_
