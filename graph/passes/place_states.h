#ifndef TACC_GRAPH_PASSES_PLACE_STATES_H_
#define TACC_GRAPH_PASSES_PLACE_STATES_H_

#include <map>
#include <string>

#include "graph/passes/partition.h"

namespace tacc::graph {

// The parameter that a state belongs to: the name after "weights/", "gradients/", ...
std::string ParameterOf(const State& state);

// Says of each state but counters how it lies at rest. Returns how each weight lies in use, by parameter.
std::map<std::string, Sharding> PlaceStates(Program& program, const PartitionOptions& options);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PLACE_STATES_H_
