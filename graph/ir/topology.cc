#include "graph/ir/topology.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {

int TopologyIndex(const std::string& name) {
  const std::string whole = name == "sp" ? "cp" : name == "tpq" ? "tp" : name;
  for (size_t i = 0; i < std::size(kTopology); ++i) {
    if (whole == kTopology[i]) return static_cast<int>(i);
  }
  return -1;
}

absl::StatusOr<Mesh> InTopology(Mesh mesh, const std::vector<std::string>& topology) {
  const auto legal = [] { return absl::StrJoin(kTopology, ", "); };
  std::vector<int> places(std::size(kTopology), topology.empty() ? 0 : -1);
  for (size_t i = 0; i < places.size() && topology.empty(); ++i) places[i] = static_cast<int>(i);
  for (size_t i = 0; i < topology.size(); ++i) {
    const int axis = topology[i] == "sp" || topology[i] == "tpq" ? -1 : TopologyIndex(topology[i]);
    if (axis < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("dist.topology: '", topology[i], "' is no axis; there are ", legal()));
    if (places[axis] >= 0)
      return absl::InvalidArgumentError(absl::StrCat("dist.topology names ", topology[i], " twice"));
    places[axis] = static_cast<int>(i);
  }
  const auto place = [&](const Mesh::Axis& axis) { return places[TopologyIndex(axis.name)]; };
  for (const Mesh::Axis& axis : mesh.axes) {
    if (axis.size == 1 || place(axis) >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("dist.topology leaves out ", kTopology[TopologyIndex(axis.name)], ", which splits ", axis.size,
                     " ways; name all axes that are split, from between nodes to inside a node; unless said otherwise "
                     "they lie as ",
                     legal()));
  }
  std::stable_sort(mesh.axes.begin(), mesh.axes.end(),
                   [&](const Mesh::Axis& a, const Mesh::Axis& b) { return place(a) < place(b); });
  return mesh;
}

}  // namespace tacc::graph
