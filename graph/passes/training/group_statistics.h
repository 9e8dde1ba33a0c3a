#ifndef TACC_GRAPH_PASSES_TRAINING_GROUP_STATISTICS_H_
#define TACC_GRAPH_PASSES_TRAINING_GROUP_STATISTICS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// Cuts the samples of a micro-batch into so many groups that follow one another, each of which batch norms normalize by
// statistics of its own: with a group for each rank that samples are split over, those of its own samples. Running
// statistics go on by the first group's, as DistributedDataParallel takes the buffers of rank 0. Moments with sync=true
// stay those of all samples. The forward must have running statistics apart (SeparateRunningStatistics), or none.
//
// Errors: InvalidArgument naming the module of a norm whose rows are not those of the samples, one sample after the
// other.
absl::Status GroupStatistics(Graph& forward, const OpTable& ops, int64_t groups);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_TRAINING_GROUP_STATISTICS_H_
