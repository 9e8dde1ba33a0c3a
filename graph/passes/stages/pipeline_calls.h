// The order in which a stage runs its micro-batches, by schedule.
#ifndef TACC_GRAPH_PASSES_STAGES_PIPELINE_CALLS_H_
#define TACC_GRAPH_PASSES_STAGES_PIPELINE_CALLS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/plan.h"
#include "graph/ir/program.h"

namespace tacc::graph {

struct PipelineShape {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int num_stages = 1;
  int num_chunks = 1;  // a rank; more than one: interleaved only
  int64_t num_micro_batches = 1;
  int num_virtual() const { return num_stages * num_chunks; }
};

// One pass over one micro-batch by one chunk.
enum class PassKind { kForward, kBackward, kWeight };
struct PassCall {
  PassKind kind = PassKind::kForward;
  int chunk = 0;
  int64_t micro_batch = 0;
};

// What one stage does in a step, in order. Weight passes: for zero-bubble, but not on the first stage, whose backward
// has nobody to hurry for. Errors: InvalidArgument when the interleaved schedule cannot deal out the micro-batches,
// nearest legal numbers named.
absl::StatusOr<std::vector<PassCall>> PassesOf(const PipelineShape& shape, int stage);

// The calls of a step of one stage's program from its passes: `receive.G` a pass ahead, so that the message is there in
// time; `finish.G` before G starts its second next message, and at the end. Where the program has these graphs.
std::vector<Call> CallsOf(const Program& program, const std::vector<PassCall>& passes);

// "forward.K", "backward.K", "weight.K".
std::string GraphName(PassKind kind, int chunk);

// Gives every stash of the program the fewest slots that its calls allow: no copy is written while an earlier
// micro-batch needs it.
void AssignSlots(Program& program);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_STAGES_PIPELINE_CALLS_H_
