#include "graph/passes/partition/layout.h"

#include <algorithm>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/ir/axis.h"
#include "graph/ops/input_axes.h"

namespace tacc::graph {
namespace {

// The mesh's axes that split it, in the order of the table: what splits a dim first does not follow from where ranks
// lie.
AxisList AxesThat(const Mesh& mesh, const std::function<bool(const AxisFacts&)>& split) {
  AxisList axes;
  for (const AxisFacts& facts : kAxes) {
    if (const int axis = mesh.Find(facts.name); axis >= 0 && split(facts)) axes.push_back(axis);
  }
  return axes;
}

int64_t SizeOf(const Mesh& mesh, Axis of) {
  const int axis = mesh.Find(Name(of));
  return axis < 0 ? 1 : mesh.axes[axis].size;
}

Mesh::Axis MeshAxis(Axis axis, int64_t size) { return {std::string(Name(axis)), size}; }

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
  options.batch_axes = AxesThat(mesh, &AxisFacts::splits_samples);
  options.sequence_axes = AxesThat(mesh, &AxisFacts::splits_tokens);
  options.at_rest_axes = AxesThat(mesh, &AxisFacts::splits_states);
  const AxisList tensor = AxesThat(mesh, &AxisFacts::splits_heads);
  for (const char* name : {"vocab", "heads", "mlp"}) options.in_use_axes[name] = tensor;
  options.in_use_axes["kv_heads"] = AxesThat(mesh, &AxisFacts::splits_kv_heads);
  options.in_use_axes["experts"] = AxesThat(mesh, &AxisFacts::splits_experts);
  const AxisList sequence =
      AxesThat(mesh, [](const AxisFacts& axis) { return axis.splits_tokens || axis.splits_heads; });
  if (!residual_module.empty()) options.residual = {residual_module, {options.batch_axes, sequence, {}}};
  return options;
}

int64_t SequenceBlocks(const Mesh& mesh) {
  const int64_t ring = SizeOf(mesh, Axis::kCp);
  return ring * SizeOf(mesh, Axis::kSp) > 1 ? ring : 0;
}

absl::StatusOr<std::vector<Mesh::Axis>> TensorAxes(const Graph& forward, int64_t ranks) {
  if (ranks == 1) return std::vector<Mesh::Axis>();
  int64_t heads = 0, kv_heads = 0;
  bool splits = false;
  for (const Node& node : forward.nodes) {
    if (node.op != Op::kParam) continue;
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
  if (heads == 0) return std::vector<Mesh::Axis>{MeshAxis(Axis::kTp, ranks)};
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
  if (major > 1) axes.push_back(MeshAxis(Axis::kTp, major));
  if (ranks > major) axes.push_back(MeshAxis(Axis::kTpq, ranks / major));
  return axes;
}

absl::StatusOr<std::vector<Mesh::Axis>> ContextAxes(const Graph& forward, int64_t ranks, int64_t ulysses,
                                                    const std::vector<Mesh::Axis>& tensor_axes,
                                                    const std::vector<int64_t>& shorter) {
  if (ranks == 1 && ulysses == 1) return std::vector<Mesh::Axis>();
  const int64_t length = ExtentOf(forward, InputAxis::kSequence);
  if (length == 0)
    return absl::InvalidArgumentError(absl::StrCat("dist.cp.size = ", ranks,
                                                   " cuts the sequence, but no input of the graph has a dim S; leave "
                                                   "dist.cp and dist.sp out"));
  int64_t tp = 1, tpq = 1;
  for (const Mesh::Axis& axis : tensor_axes) (axis.name == Name(Axis::kTp) ? tp : tpq) = axis.size;
  std::vector<std::pair<int64_t, int64_t>> heads;  // of each attention: query heads, kv heads
  for (const Node& node : forward.nodes) {
    if (node.op != "attention") continue;
    heads.emplace_back(forward.type(node.operands[0]).dims[2], forward.type(node.operands[1]).dims[2]);
  }
  // Kv heads are split as far as the query heads are, or each rank has one, that others have too.
  auto legal = [&](int64_t n) {
    const int64_t unit = ranks / n == 1 ? n : 2 * ranks;
    return ranks % n == 0 && length % unit == 0 &&
           std::all_of(shorter.begin(), shorter.end(), [&](int64_t l) { return l % unit == 0; }) &&
           std::all_of(heads.begin(), heads.end(), [&](const std::pair<int64_t, int64_t>& h) {
             return h.first % (tp * tpq * n) == 0 && (h.second == tp || (tpq == 1 && h.second % (tp * n) == 0));
           });
  };
  if (!legal(ulysses)) {
    std::vector<int64_t> lengths = shorter;
    lengths.push_back(length);
    std::vector<int64_t> sizes;
    for (int64_t n = 1; n <= ranks; ++n) {
      if (legal(n)) sizes.push_back(n);
    }
    std::string of;
    if (!heads.empty()) {
      absl::StrAppend(&of, ", ", heads[0].first, " heads and ", heads[0].second, " kv heads");
      if (tp * tpq > 1) absl::StrAppend(&of, " over dist.tp.size = ", tp * tpq);
    }
    return absl::InvalidArgumentError(
        absl::StrCat("dist.cp.size = ", ranks, " with dist.sp.size = ", ulysses, " does not fit a sequence of ",
                     absl::StrJoin(lengths, " or "), " tokens", of,
                     "; dist.sp.size must divide dist.cp.size and the heads, and data.seq_len be a multiple of ",
                     ranks == ulysses ? "it" : "2 x dist.cp.size",
                     sizes.empty() ? "; with this dist.cp.size none does"
                                   : absl::StrCat("; dist.sp.size may be ", absl::StrJoin(sizes, ", "))));
  }
  std::vector<Mesh::Axis> axes;
  if (ranks > ulysses) axes.push_back(MeshAxis(Axis::kCp, ranks / ulysses));
  if (ulysses > 1) axes.push_back(MeshAxis(Axis::kSp, ulysses));
  return axes;
}

}  // namespace tacc::graph
