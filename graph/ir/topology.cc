#include "graph/ir/topology.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/axis.h"

namespace tacc::graph {

std::string JobAxisNames() {
  return absl::StrJoin(kJobAxes, ", ", [](std::string* out, Axis axis) { absl::StrAppend(out, Name(axis)); });
}

absl::StatusOr<Mesh> InTopology(Mesh mesh, const std::vector<std::string>& topology) {
  for (size_t i = 0; i < topology.size(); ++i) {
    const AxisFacts* named = FindAxis(topology[i]);
    if (named == nullptr || named->job_axis != named->axis)
      return absl::InvalidArgumentError(
          absl::StrCat("dist.topology: '", topology[i], "' is no axis; there are ", JobAxisNames()));
    if (std::find(topology.begin(), topology.begin() + static_cast<int64_t>(i), topology[i]) !=
        topology.begin() + static_cast<int64_t>(i))
      return absl::InvalidArgumentError(absl::StrCat("dist.topology names ", topology[i], " twice"));
  }
  const auto job_axis = [](const Mesh::Axis& axis) { return FindAxis(axis.name)->job_axis; };
  // What is left out lies before the rest.
  const auto place = [&](const Mesh::Axis& axis) -> int64_t {
    if (topology.empty()) return static_cast<int64_t>(job_axis(axis));
    const auto named = std::find(topology.begin(), topology.end(), Name(job_axis(axis)));
    return named == topology.end() ? -1 : named - topology.begin();
  };
  for (const Mesh::Axis& axis : mesh.axes) {
    if (axis.size == 1 || place(axis) >= 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("dist.topology leaves out ", Name(job_axis(axis)), ", which splits ", axis.size,
                     " ways; name all axes that are split, from between nodes to inside a node; unless said otherwise "
                     "they lie as ",
                     JobAxisNames()));
  }
  std::stable_sort(mesh.axes.begin(), mesh.axes.end(),
                   [&](const Mesh::Axis& a, const Mesh::Axis& b) { return place(a) < place(b); });
  return mesh;
}

}  // namespace tacc::graph
