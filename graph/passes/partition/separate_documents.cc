#include "graph/passes/partition/separate_documents.h"

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"

namespace tacc::graph {

absl::StatusOr<Graph> SeparateDocuments(const Graph& forward, const OpTable& ops) {
  Graph graph = forward;
  graph.nodes.clear();
  ValueId start = kNoValue;
  for (Node node : forward.nodes) {
    const OpDef* op = ops.Find(node.op);
    if (node.op == Op::kInput && node.symbol == "tokens") {
      start = graph.AddValue("document_start", forward.type(node.results[0]));
      Node input;
      input.op = Op::kInput;
      input.symbol = "document_start";
      input.results = {start};
      graph.nodes.push_back(std::move(input));
    }
    if (op != nullptr && op->takes_document_start) {
      if (start == kNoValue)
        return absl::InvalidArgumentError(absl::StrCat(node.op.name(), " comes before the input \"tokens\""));
      node.operands.push_back(start);
    }
    if (op != nullptr && op->infer && !node.results.empty()) {
      // Tables become one a row, and what is made of them follows.
      const auto types = InferTypes(*op, node.attrs, CallOf(graph, node).operands);
      if (!types.ok()) {
        return absl::Status(types.status().code(), absl::StrCat("in data with documents apart (column segment): at ",
                                                                node.module.empty() ? "the top level" : node.module,
                                                                ": ", types.status().message()));
      }
      for (size_t r = 0; r < node.results.size(); ++r) graph.values[node.results[r]].type = (*types)[r];
    }
    graph.nodes.push_back(std::move(node));
  }
  return graph;
}

}  // namespace tacc::graph
