#ifndef TACC_GRAPH_VERIFY_CHECKS_H_
#define TACC_GRAPH_VERIFY_CHECKS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "graph/ir/program.h"
#include "graph/ops/op.h"

// The parts of the verifier. Each assumes that those before it have passed.
namespace tacc::graph {

// "%a, %b = op @module", for messages.
std::string Describe(const Graph& graph, const Node& node);

// InvalidArgument "DESCRIPTION: what".
absl::Status NodeError(const Graph& graph, const Node& node, absl::string_view what);

// Order of definitions, ops, arity, attributes, symbols, types. `level` logical: no placements and no collectives; else
// types are checked on the logical types of the placements.
absl::Status CheckStructure(const Graph& graph, const OpTable& ops, Level level);

// Inputs' names and types; reads and stores against the states.
absl::Status CheckBindings(const Graph& graph, const Program& program, const StateIndex& states);

// A placement by itself: local dims, axes.
absl::Status CheckPlacement(const TensorType& local, const Placement& placement, const Mesh& mesh);

// Placements of all values, rules, collectives, waits.
absl::Status CheckPartition(const Graph& graph, const OpTable& ops, const Mesh& mesh);

// Offsets of states and values, and what the bytes hold over two steps.
absl::Status CheckMemory(const Program& program, const OpTable& ops);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_VERIFY_CHECKS_H_
