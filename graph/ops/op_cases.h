#ifndef TACC_GRAPH_OPS_OP_CASES_H_
#define TACC_GRAPH_OPS_OP_CASES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "graph/ops/op.h"
#include "tests/interpreter/simulation.h"

// For tests: one or more instances of each op, small, with odd sizes.
namespace tacc::graph {

// An instance as text, "add f64[2,3] f64[3] key=value", as a graph: leaves a0, a1, ..., the node, outputs r0, r1, ...
struct OpCase {
  std::string text;
  Graph graph;
  int node = 0;  // index of the op's node in graph.nodes

  const Node& op_node() const { return graph.nodes[node]; }
};

// Errors: those of the parser and of inference.
absl::StatusOr<OpCase> ParseOpCase(const OpTable& ops, const std::string& text);

// Instances with f64 operands, for every op but leaves, ends and collectives.
std::vector<std::string> OpCaseTexts();

// Values for the leaves: random, inside the op's domain (ids within the vocabulary, positive where a root is taken).
interpreter::Arrays RandomLeaves(const OpCase& op_case, interpreter::Random& random);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_OPS_OP_CASES_H_
