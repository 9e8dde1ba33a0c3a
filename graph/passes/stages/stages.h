#ifndef TACC_GRAPH_PASSES_STAGES_STAGES_H_
#define TACC_GRAPH_PASSES_STAGES_STAGES_H_

#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"
#include "graph/passes/stages/pipeline_calls.h"

namespace tacc::graph {

struct StageOptions {
  PipelineSchedule schedule = PipelineSchedule::k1F1B;
  int num_chunks = 1;  // parts of the model a rank has; more than one: interleaved only
  // Module paths between which the model may be cut: before each but the first. The cut is where the slowest part has
  // the fewest FLOPs.
  std::vector<std::string> units;
  // Instead: the module paths that begin the second part, the third, and so on.
  std::vector<std::string> split_points;
};

// Cuts a partitioned program, the only one of `programs`, with an unused mesh axis `pp` into one for each coordinate
// on it. Returns true.
//
// - The forward graph is cut in line order, at module paths; a backward node lies where its module's forward does. Part
//   v of the P x chunks parts is chunk v / P of stage v mod P. Each part becomes graphs `forward.K`, `backward.K` and,
//   for zero-bubble, `weight.K` (what leads to weights' gradients only); the eval graph becomes `eval.K`.
// - What follows from states and inputs by collectives, slices, masks, casts and tables is made again in each graph
//   that needs it. Any other value that crosses graphs is a stash, and one that crosses stages travels from stash to
//   stash by `send` and `recv`; `receive.G` starts what graph G takes, `finish.G` ends what G sent.
// - A parameter used in several stages is a state in each. Each stage accumulates its own part of the gradient; the
//   update sums the parts over these stages.
// - The update: every stage updates its own parameters. What needs all of them (the norm) or lies on one stage (loss
//   and counters) is summed over `pp`, so that all stages have all outputs, of the step and of an evaluation.
// - Slots follow from the calls of the schedule.
//
// Errors: InvalidArgument for a split point that is no module path (the nearest is named), for split points out of
// order, and for more parts than there are units.
absl::StatusOr<bool> CutStages(std::vector<Program>& programs, const OpTable& ops, const StageOptions& options);

// Where the forward graph is cut: for each part the index of its first node. `num_parts` of them, the first is 0.
absl::StatusOr<std::vector<int>> CutPoints(const Graph& graph, int num_forward_nodes, const OpTable& ops,
                                           const StageOptions& options, int num_parts);

// Which nodes are made again wherever they are needed instead of being kept: see CutStages.
std::vector<char> DerivedNodes(const Graph& graph, const Program& program, const OpTable& ops);

// The update graph (or any graph without micro-batches) of each stage. `stages_of`: the stages that have each state.
absl::StatusOr<std::vector<Graph>> CutUpdate(const Graph& update, const Program& program, const OpTable& ops,
                                             const std::map<std::string, std::set<int>>& stages_of, int num_stages);

// The begin graph of each stage: of its own states.
std::vector<Graph> CutBegin(const Graph& begin, const OpTable& ops,
                            const std::map<std::string, std::set<int>>& stages_of, int num_stages);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_STAGES_STAGES_H_
