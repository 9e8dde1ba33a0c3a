#ifndef TACC_GRAPH_PASSES_PARTITION_AXIS_LIST_H_
#define TACC_GRAPH_PASSES_PARTITION_AXIS_LIST_H_

#include <algorithm>
#include <string>
#include <vector>

#include "graph/ir/sharding.h"

namespace tacc::graph {

inline bool Contains(const AxisList& axes, int axis) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }

inline void Remove(AxisList& axes, int axis) { axes.erase(std::remove(axes.begin(), axes.end(), axis), axes.end()); }

inline bool IsPrefix(const AxisList& prefix, const AxisList& axes) {
  return prefix.size() <= axes.size() && std::equal(prefix.begin(), prefix.end(), axes.begin());
}

inline size_t CommonPrefix(const AxisList& a, const AxisList& b) {
  size_t n = 0;
  while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
  return n;
}

// The attribute `over` of a collective.
inline std::vector<std::string> AxisNames(const Mesh& mesh, const AxisList& axes) {
  std::vector<std::string> names;
  for (int axis : axes) names.push_back(mesh.axes[axis].name);
  return names;
}

}  // namespace tacc::graph

#endif  // TACC_GRAPH_PASSES_PARTITION_AXIS_LIST_H_
