#ifndef TACC_GRAPH_PASSES_PARTITION_SEPARATE_DOCUMENTS_H_
#define TACC_GRAPH_PASSES_PARTITION_SEPARATE_DOCUMENTS_H_

#include "absl/status/statusor.h"
#include "graph/ir/graph.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// The forward graph for rows that hold several documents (data with the column `segment`): an input "document_start",
// i32 [B,S] as "tokens", the index in the row of the first token of each token's document. Attention stays within
// documents, and positions count from their start; so a row gives what its documents give one by one. Errors:
// InvalidArgument for an attention that is not causal, or a graph without "tokens".
absl::StatusOr<Graph> SeparateDocuments(const Graph& forward, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_SEPARATE_DOCUMENTS_H_
