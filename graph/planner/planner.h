// The choice of a layout: candidates that were compiled and simulated, the best first.
#ifndef TACC_GRAPH_PLANNER_PLANNER_H_
#define TACC_GRAPH_PLANNER_PLANNER_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/analysis/cost.h"
#include "graph/ir/plan.h"
#include "graph/passes/pipeline.h"
#include "graph/planner/cost/cluster.h"
#include "graph/planner/plan_request.h"
#include "graph/planner/search.h"
#include "graph/planner/simulate/simulate.h"

namespace tacc::graph {

// A model for a given number of rows: the planner tries several.
struct ForwardModel {
  Graph forward;
  std::vector<std::string> units;  // module paths of the decoder layers: units of gathering and of recomputation
  std::string residual_module;     // the module whose result [B,S,N] the residual stream begins with; may be empty
  int64_t num_parameters = 0;
  int64_t num_frozen_parameters = 0;
  std::vector<std::string> notes;  // ImportedModel::notes
};
// Builds the model. The functions below call it several times, from the thread that calls them, and do not keep it.
// They fail where it fails for one row.
using ForwardBuilder = std::function<absl::StatusOr<ForwardModel>(int64_t batch, int64_t seq_len)>;

// How likely a layout's buffers are too small for what tokens choose: those without room go without that expert.
struct OverflowRisk {
  double share_at_random = 0;  // of slots, see OverflowAtRandom
  double buffer_factor = 0;
  bool is_asked_for = false;  // else the layout is only shown, after all others
};

// One layout with what it needs and what it is predicted to take.
struct Candidate {
  Layout layout;
  Plan plan;
  MemoryUse memory;         // of the stage that needs most
  StepCost cost;            // of the stage with the most FLOPs
  StageTimes times;         // simulated, of the stage that is busy longest
  double wait_seconds = 0;  // of a rank of the first stage: for communication that nothing hides, and for other stages
  double model_flops = 0;   // of a step, for MFU
  int64_t num_parameters = 0, num_trained_parameters = 0;
  double optimizer_bytes_of_element = 0;  // of those that are trained, on average
  double copies_save_seconds = 0;         // predicted, of a step; 0 without them (Plan::keeps_copies)
  // Where the planner chose to keep the residual stream in bf16: what that saves of a step, predicted; infinity:
  // nothing fits without it.
  double narrow_residual_saves_seconds = 0;
  bool fits = false;
  std::optional<OverflowRisk> overflow_risk;  // absent: there is room for every token
  bool composed = false;                      // put together from parts of the model (ComposePlan), not from all of it
};

// What the planner found. `candidates`: real programs, the one to take first: those that fit by predicted step time,
// then the others by memory. `losers`: the other meshes, by estimate, which leaves out what the job pins (and says so):
// pins decide among the candidates.
struct Planned {
  std::vector<Candidate> candidates;
  std::vector<Program> programs;  // of the first candidate's stages, if it fits
  std::vector<Loser> losers;
  int64_t num_meshes = 0, num_layouts = 0;  // that were searched
  std::vector<std::string> notes;           // of the model
};

// Shares of a step that must be saved: by a further kind of parallelism, by copies of weights, by a residual stream in
// bf16. Less than that no prediction can tell apart.
inline constexpr double kKindMustEarn = 0.01;
inline constexpr double kCopiesMustEarn = 0.005;
inline constexpr double kNarrowResidualMustEarn = 0.01;

// Whatever the request leaves open is searched (search.h); the best become programs, for exact bytes and a simulated
// step (compose.h), one after the other: first the one that may cost least by its estimate and by what the programs
// before it teach (lessons.h), until none may cost less than the best that fits. Each kind of parallelism beside dp
// and fsdp must earn kKindMustEarn of the step. The best is then tried with copies of its weights in the compute type,
// which the update writes, so that nothing is cast where it is used: they are kept where they fit and earn
// kCopiesMustEarn. The first candidate's figures are those of its whole program. Where the request leaves
// residual_dtype open and products are in bf16, all of this is done for both types: bf16 is taken where nothing fits in
// f32, or where it earns kNarrowResidualMustEarn. There is at least one candidate; where the first does not fit, none
// does. Errors: InvalidArgument when the request contradicts itself (nearest legal values named) or the model cannot be
// built.
absl::StatusOr<Planned> PlanCandidates(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops);

// The errors of PlanCandidates that the job, the model and the data (where it is known) decide, whatever the devices: a
// search that makes no program.
absl::Status CheckLayout(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops);

// Whether some layout fits by estimate: a search that makes no program. Errors: as PlanCandidates.
absl::StatusOr<bool> MayFit(const PlanRequest& request, const ForwardBuilder& model, const OpTable& ops);

// What a candidate costs: the step that it is predicted to take, with what further kinds of parallelism must earn.
double Worth(const Candidate& candidate);

// All layouts that the search takes and that fit by estimate, fastest first: what PlanCandidates chooses from. Errors:
// as PlanCandidates.
absl::StatusOr<std::vector<Scored>> LegalLayouts(const PlanRequest& request, const ForwardBuilder& model,
                                                 const OpTable& ops);

enum class Programs { kComposed, kWhole };
// Each layout as programs, without copies of its weights, or why it cannot be one: of the whole model (MeasurePlan), or
// put together from parts of it (ComposePlan). Errors: the model cannot be built.
absl::StatusOr<std::vector<absl::StatusOr<Candidate>>> MeasureLayouts(const PlanRequest& request,
                                                                      const std::vector<Layout>& layouts, Programs of,
                                                                      const ForwardBuilder& model, const OpTable& ops);

// The entry of the stage that needs most. `stages` is not empty, and holds what is returned.
const MemoryUse& Largest(const std::vector<MemoryUse>& stages);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_PLANNER_H_
