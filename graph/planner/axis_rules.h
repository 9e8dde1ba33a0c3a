// Which sizes of the parallel axes are legal for a model.
#ifndef TACC_GRAPH_PLANNER_AXIS_RULES_H_
#define TACC_GRAPH_PLANNER_AXIS_RULES_H_

#include <array>
#include <cstdint>
#include <string>

#include "graph/ir/axis.h"
#include "graph/planner/search.h"

namespace tacc::graph {

// What makes sizes of an axis legal beside that they divide the workers.
struct AxisRule {
  Axis axis;
  // Whether the model can be split so; null: always.
  bool (*splits)(const ModelWork& model, const SearchRequest& request, int64_t size);
  // What follows "dist.AXIS.size = 3" where `splits` says no.
  std::string (*reason)(const ModelWork& model, const SearchRequest& request);
  // Whether the search tries a legal size that the job does not ask for; null: always.
  bool (*tried)(const ModelWork& model, const SearchRequest& request, int64_t size);
  // Whether SearchRequest::can_lay_out, which knows the model's shardings, is asked where it is given, not `splits`.
  bool by_shardings = false;
};

// All axes of jobs but dp, which takes what they leave, from the one that changes least to the one that changes most:
// of two layouts that are as fast the search keeps the first.
extern const std::array<AxisRule, kJobAxes.size() - 1> kAxisRules;

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PLANNER_AXIS_RULES_H_
