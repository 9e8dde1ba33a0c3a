#ifndef TACC_GRAPH_PASSES_PARTITION_EXPERT_PARALLEL_H_
#define TACC_GRAPH_PASSES_PARTITION_EXPERT_PARALLEL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

struct ExpertParallelOptions {
  // Ranks that share the experts of a layer, equally; 1: every rank has all of them in use.
  int64_t ranks = 1;
  // Rows of the buffer that a group of tokens has for each of these ranks, over the number of its slots that the rank
  // gets when experts are used equally.
  double buffer_factor = 1.25;
  // Groups that a sample's tokens are cut into: as many as ranks share a sequence.
  int64_t sequence_groups = 1;
};

// Puts the tokens' slots of a forward graph into buffers, one for each rank that has experts, so that the rows can be
// sent to the experts instead of the experts to the rows. Between the slots' ids and the sum over a token's slots
// everything is computed on rows of buffers [B, groups, ranks, capacity, .]; that these are split over samples before
// and over ranks after is a matter of shardings, and the all_to_all follows.
//
// Slots that find their buffer full are left out, as if their weight were zero; the graph's output "expert_overflow"
// f32[] is their number over all layers. A factor of num_experts / experts of a token or more leaves none out.
//
// Returns whether anything changed: nothing when ranks is 1. Errors: InvalidArgument when there are no experts, when
// the ranks do not divide them, or the groups the tokens; Unimplemented for an op between experts' products that is not
// done row by row.
absl::StatusOr<bool> ExpertParallel(Graph& forward, const OpTable& ops, const ExpertParallelOptions& options);

// Whether no slot is ever left out, however tokens choose their experts: then expert parallelism changes no result.
bool BuffersSuffice(const Graph& forward, const ExpertParallelOptions& options);

// The share of slots that is left out where each token chooses its experts at random, all of them alike and whatever
// the others choose. Then a rank's slots of a group of T tokens have the mean T k / D and the variance T k (1/D) (1 -
// 1/D) (E - k) / (E - 1), with k of E experts a token on D ranks; of so many tokens their sum is normal.
double OverflowAtRandom(const Graph& forward, const ExpertParallelOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_EXPERT_PARALLEL_H_
