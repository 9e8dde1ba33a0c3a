#ifndef TACC_GRAPH_PASSES_PARTITION_PLACE_STATES_H_
#define TACC_GRAPH_PASSES_PARTITION_PLACE_STATES_H_

#include <map>
#include <string>
#include <vector>

#include "graph/passes/partition/partition.h"

namespace tacc::graph {

// How a parameter lies where it is used, and with as many leading dims as one as its shards want (CutAtRest).
struct ParameterForm {
  Dims dims;  // the model's
  Sharding in_use;
  Dims merged_dims;  // the same where no shards want any as one
  Sharding merged_in_use;

  bool is_merged() const { return merged_dims.size() < dims.size(); }
};
using ParameterForms = std::map<std::string, ParameterForm>;  // by parameter

// Says of each state of the program but counters how it lies at rest. `graphs`: those of the program, which read and
// store the states.
ParameterForms PlaceStates(const std::vector<Graph>& graphs, const PartitionOptions& options, Program& program);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_PLACE_STATES_H_
