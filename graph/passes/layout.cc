#include "graph/passes/layout.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tacc::graph {
namespace {

AxisList Axes(const Mesh& mesh, std::initializer_list<const char*> names) {
  AxisList axes;
  for (const char* name : names) {
    if (const int axis = mesh.Find(name); axis >= 0) axes.push_back(axis);
  }
  std::sort(axes.begin(), axes.end());
  return axes;
}

// Cuts `ranks` so that kv heads are split evenly: over all of it, or one kv head a group of ranks. 0: neither.
int64_t RanksOfKvHeads(int64_t heads, int64_t kv_heads, int64_t ranks) {
  if (heads % ranks != 0) return 0;
  if (kv_heads % ranks == 0) return ranks;
  return ranks % kv_heads == 0 ? kv_heads : 0;
}

}  // namespace

PartitionOptions LayoutOf(const Mesh& mesh, const std::string& residual_module) {
  PartitionOptions options;
  options.mesh = mesh;
  options.batch_axes = Axes(mesh, {"dp", "fsdp", "ep"});
  options.sequence_axes = Axes(mesh, {"cp", "sp"});
  options.at_rest_axes = Axes(mesh, {"fsdp"});
  const AxisList tensor = Axes(mesh, {"tp", "tpq"});
  for (const char* name : {"vocab", "heads", "mlp"}) options.in_use_axes[name] = tensor;
  options.in_use_axes["kv_heads"] = Axes(mesh, {"tp"});
  options.in_use_axes["experts"] = Axes(mesh, {"ep"});
  if (!residual_module.empty())
    options.residual = {residual_module, {options.batch_axes, Axes(mesh, {"cp", "sp", "tp", "tpq"}), {}}};
  return options;
}

int64_t SequenceBlocks(const Mesh& mesh) {
  auto size = [&](const char* name) {
    const int axis = mesh.Find(name);
    return axis < 0 ? int64_t{1} : mesh.axes[axis].size;
  };
  return size("cp") * size("sp") > 1 ? size("cp") : 0;
}

absl::StatusOr<std::vector<Mesh::Axis>> TensorAxes(const Graph& forward, int64_t ranks) {
  if (ranks == 1) return std::vector<Mesh::Axis>();
  int64_t heads = 0, kv_heads = 0;
  bool splits = false;
  for (const Node& node : forward.nodes) {
    if (node.op != "param") continue;
    const auto axes = GetAttr<std::vector<std::string>>(node.attrs, "axes");
    for (size_t d = 0; d < axes.size(); ++d) {
      const int64_t extent = forward.type(node.results[0]).dims[d];
      if (axes[d] == "heads") heads = extent;
      if (axes[d] == "kv_heads") kv_heads = extent;
      splits |= axes[d] == "heads" || axes[d] == "mlp" || axes[d] == "vocab";
    }
  }
  if (!splits) {
    return absl::InvalidArgumentError(absl::StrCat("dist.tp.size = ", ranks,
                                                   ": no weight of the model says which of its dims may be split; in a "
                                                   "graph text give params axes=[mlp,embed] or the like"));
  }
  if (heads == 0) return std::vector<Mesh::Axis>{{"tp", ranks}};
  if (kv_heads == 0) kv_heads = heads;
  const int64_t major = RanksOfKvHeads(heads, kv_heads, ranks);
  if (major == 0) {
    std::vector<int64_t> legal;
    for (int64_t n = 1; n <= heads; ++n) {
      if (RanksOfKvHeads(heads, kv_heads, n) > 0) legal.push_back(n);
    }
    return absl::InvalidArgumentError(absl::StrCat("dist.tp.size = ", ranks, " does not divide the model's ", heads,
                                                   " heads and ", kv_heads, " kv heads; use ",
                                                   absl::StrJoin(legal, ", ")));
  }
  std::vector<Mesh::Axis> axes;
  if (major > 1) axes.push_back({"tp", major});
  if (ranks > major) axes.push_back({"tpq", ranks / major});
  return axes;
}

}  // namespace tacc::graph
