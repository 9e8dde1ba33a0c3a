#ifndef TACC_GRAPH_PASSES_PARTITION_FACTOR_AXES_H_
#define TACC_GRAPH_PASSES_PARTITION_FACTOR_AXES_H_

#include <cstdint>
#include <vector>

#include "graph/ir/sharding.h"
#include "graph/ops/op.h"

namespace tacc::graph {

// A wish to split dims as `dims` say, `factors` being the factors of the rule that they are mapped to.
struct FactorProposal {
  bool from_weight = false;  // weights as they are used, and their gradients: before all others
  int64_t bytes = 0;         // the larger is heard first
  const std::vector<int>* factors = nullptr;
  const std::vector<AxisList>* dims = nullptr;
};

// The axes that split each factor of a rule, from proposals heard one after the other. A proposal extends what a factor
// has (it must begin with that) up to the first axis that another factor holds or that may not split the factor. What
// a factor could not take goes to where it says (Factor::move_to), if it divides that.
std::vector<AxisList> ChooseFactorAxes(const Rule& rule, const Mesh& mesh, std::vector<FactorProposal> proposals);

// Hears one more proposal.
void TakeProposal(const FactorProposal& proposal, const Rule& rule, const Mesh& mesh, std::vector<AxisList>& axes);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_FACTOR_AXES_H_
