#include "graph/ir/sharding.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string AxisNames(const Mesh& mesh, const AxisList& axes, const char* separator) {
  return absl::StrJoin(axes, separator,
                       [&](std::string* out, int axis) { absl::StrAppend(out, mesh.axes[axis].name); });
}

}  // namespace

int64_t Mesh::num_ranks() const {
  int64_t n = 1;
  for (const Axis& axis : axes) n *= axis.size;
  return n;
}

int Mesh::Find(absl::string_view name) const {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (name == axes[i].name.c_str()) return static_cast<int>(i);
  }
  return -1;
}

std::vector<int64_t> Mesh::Coordinates(int64_t rank) const {
  std::vector<int64_t> coordinates(axes.size());
  for (int i = static_cast<int>(axes.size()) - 1; i >= 0; --i) {
    coordinates[i] = rank % axes[i].size;
    rank /= axes[i].size;
  }
  return coordinates;
}

int64_t Mesh::Stride(int axis) const {
  int64_t stride = 1;
  for (size_t i = axis + 1; i < axes.size(); ++i) stride *= axes[i].size;
  return stride;
}

std::string Mesh::ToString() const {
  return absl::StrJoin(axes, " ", [](std::string* out, const Axis& a) { absl::StrAppend(out, a.name, "=", a.size); });
}

int64_t NumShards(const Mesh& mesh, const AxisList& axes) {
  int64_t n = 1;
  for (int axis : axes) n *= mesh.axes[axis].size;
  return n;
}

bool Sharding::IsReplicated() const {
  return pending.empty() && std::all_of(dims.begin(), dims.end(), [](const AxisList& a) { return a.empty(); });
}

bool Sharding::Uses(int axis) const {
  return std::any_of(dims.begin(), dims.end(),
                     [axis](const AxisList& axes) { return std::find(axes.begin(), axes.end(), axis) != axes.end(); });
}

bool Sharding::IsPending(int axis) const { return std::find(pending.begin(), pending.end(), axis) != pending.end(); }

std::string Sharding::ToString(const Mesh& mesh) const {
  std::string out = absl::StrCat("[",
                                 absl::StrJoin(dims, ",",
                                               [&](std::string* s, const AxisList& axes) {
                                                 absl::StrAppend(s, axes.empty() ? "-" : AxisNames(mesh, axes, "+"));
                                               }),
                                 "]");
  if (!pending.empty()) absl::StrAppend(&out, " pending=[", AxisNames(mesh, pending, ","), "]");
  return out;
}

Dims LocalDims(const Dims& global, const Sharding& sharding, const Mesh& mesh) {
  Dims local = global;
  for (size_t i = 0; i < local.size(); ++i) {
    for (int axis : sharding.dims[i]) local[i] = CeilDiv(local[i], mesh.axes[axis].size);
  }
  return local;
}

Range LocalRange(int64_t extent, const AxisList& axes, const Mesh& mesh, const std::vector<int64_t>& coordinates) {
  Range range{0, extent};
  int64_t step = extent;
  for (int axis : axes) {
    step = CeilDiv(step, mesh.axes[axis].size);
    const int64_t begin = range.begin + step * coordinates[axis];
    range = {std::min(begin, range.end), std::min(begin + step, range.end)};
  }
  return range;
}

bool IsPadded(int64_t extent, const AxisList& axes, const Mesh& mesh) {
  for (int axis : axes) {
    if (extent % mesh.axes[axis].size != 0) return true;
    extent /= mesh.axes[axis].size;
  }
  return false;
}

}  // namespace tacc::graph
