#include "graph/analysis/group.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "graph/ir/attr.h"
#include "graph/ir/program.h"

namespace tacc::graph {

GroupShape ShapeOf(const Mesh& mesh, const AxisList& axes, int64_t devices_per_node) {
  GroupShape group;
  int64_t stride = 1;
  for (int axis = static_cast<int>(mesh.axes.size()) - 1; axis >= 0; --axis) {
    const int64_t size = mesh.axes[axis].size;
    if (std::find(axes.begin(), axes.end(), axis) != axes.end()) {
      group.size *= size;
      group.in_node *= devices_per_node == 0 ? size : std::clamp<int64_t>(devices_per_node / stride, 1, size);
    }
    stride *= size;
  }
  return group;
}

GroupShape GroupOf(const Node& node, const Mesh& mesh, int64_t devices_per_node) {
  const int stage_axis = mesh.Find(kStageAxis);
  const auto among = GetAttr<std::vector<int64_t>>(node.attrs, "stages");
  if (among.empty() || stage_axis < 0) {
    AxisList axes;
    for (const std::string& name : GetAttr<std::vector<std::string>>(node.attrs, "over"))
      axes.push_back(mesh.Find(name));
    return ShapeOf(mesh, axes, devices_per_node);
  }
  // Of the first rank of each stage.
  std::set<int64_t> nodes;
  for (int64_t stage : among)
    nodes.insert(devices_per_node == 0 ? 0 : stage * mesh.Stride(stage_axis) / devices_per_node);
  const auto size = static_cast<int64_t>(among.size()), num_nodes = static_cast<int64_t>(nodes.size());
  return {size, size % num_nodes == 0 ? size / num_nodes : 1};
}

}  // namespace tacc::graph
