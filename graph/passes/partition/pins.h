#ifndef TACC_GRAPH_PASSES_PARTITION_PINS_H_
#define TACC_GRAPH_PASSES_PARTITION_PINS_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "graph/passes/partition/partition.h"

namespace tacc::graph {

// Shardings that a job pins. Key: a pattern of names of parameters or of paths of modules, in which `*` stands for any
// characters but '.'; NAME also stands for its parts NAME[BEGIN:END]. Value: what splits each dim, "[tp, -]", a dim
// being `-` or axes joined by `+`, major to minor.
// - Of a parameter: its sharding in use, of its dims as the graph has them (heads and head_dim apart). It may be split
//   over tp; its experts over ep.
// - Of a module: that of its results (what later modules of the forward read) with as many dims. Dim 0, the batch, may
//   be split over dp, fsdp and ep; others over cp and tp.
using Pins = std::map<std::string, std::string>;

// Puts what the pins say of the model into the options, whose mesh decides what `tp` and `cp` are and what divides.
// Errors: InvalidArgument "dist.pins: ...", with what is legal, for a pin that is no sharding, matches nothing, has an
// axis that there is not, that may not split the dim, or that is given twice, has another number of dims than what it
// matches, or does not divide a dim (vocab and mlp of parameters may be padded); and for two that contradict each
// other.
absl::Status ApplyPins(const Pins& pins, const Graph& forward, PartitionOptions& options);

// The values of a logical graph of a program that lie as PartitionOptions::pinned_results says, and how.
std::map<ValueId, std::vector<AxisList>> PinnedValues(const Program& program, const Graph& graph,
                                                      const std::map<std::string, std::vector<AxisList>>& pinned);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_PINS_H_
