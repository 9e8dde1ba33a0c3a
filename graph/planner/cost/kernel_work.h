// What the dims of a kernel are to a layout, for the work that a model consists of (work.h).
#ifndef TACC_GRAPH_PLANNER_COST_KERNEL_WORK_H_
#define TACC_GRAPH_PLANNER_COST_KERNEL_WORK_H_

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "graph/ir/graph.h"
#include "graph/ops/op.h"
#include "graph/planner/cost/work.h"

namespace tacc::graph {

// What a dim is to a layout.
enum class Kind : char { kPlain, kToken, kTensor, kExpert };
using Kinds = std::vector<Kind>;

// Of an axis of a weight, by its name.
Kind KindOf(const std::string& axis);
bool Has(const Kinds& kinds, Kind kind);
Split RegionOf(const Kinds& factors);

// Sets the extents of a product of operands that have these factors of the rule.
void ProductExtents(const Rule& rule, const std::vector<int>& of_a, const std::vector<int>& of_b, const Kinds& factors,
                    KernelWork& k);

// Sets the shares of the parts of an einsum_joined, and whether the operand that they share is cut along its depth.
void JoinedParts(const Rule& rule, const OpCall& call, KernelWork& k);

// Sets the extents of a product by experts. Slots are tokens, of which each expert has its part. What features tp
// splits is known of the weight, or of the gradient's operands.
void GroupedExtents(const Node& node, const OpCall& call, const std::vector<Kinds>& kinds, KernelWork& k);

// Adds an instant at the end of a unit's. Those before at which no more is needed are none.
void AddInstant(const Instant& instant, std::vector<Instant>& instants);

// UnitWork::gradients_share of each part: part[i] is that of node i, those of the backward begin at `first`, and
// makers[parameter] makes its gradient.
std::vector<double> GradientShares(const Graph& graph, size_t first, const std::vector<int>& part,
                                   const std::map<std::string, int>& makers, const OpTable& ops);

// Equal for units that a layout treats alike.
std::string KeyOf(const UnitWork& u);

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_COST_KERNEL_WORK_H_
