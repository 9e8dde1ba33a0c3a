#include "graph/passes/training/group_statistics.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "graph/ir/status_macros.h"
#include "graph/ops/builder.h"
#include "graph/ops/input_axes.h"

namespace tacc::graph {
namespace {

class Grouping {
 public:
  Grouping(Graph& graph, const OpTable& ops, int64_t groups)
      : graph_(graph), ops_(ops), groups_(groups), samples_(ExtentOf(graph, InputAxis::kBatch)) {}

  absl::Status Run() {
    const std::vector<int> producers = graph_.Producers();
    std::vector<char> is_own(graph_.nodes.size(), 0);  // sums of a group's own
    for (const Node& node : graph_.nodes) {
      if (node.op == "batch_moments" && !GetAttr<bool>(node.attrs, "sync")) is_own[producers[node.operands[0]]] = 1;
    }
    is_grouped_.resize(graph_.values.size(), 0);
    std::vector<Node> nodes = std::exchange(graph_.nodes, {});
    for (size_t i = 0; i < nodes.size(); ++i) {
      Node& node = nodes[i];
      if (is_own[i]) {
        TACC_RETURN_IF_ERROR(CheckRows(node, producers, nodes));
        node.attrs["groups"] = groups_;
        TACC_RETURN_IF_ERROR(InferGrouped(node));
      } else if (node.op == "batch_moments" && is_grouped_[node.operands[0]]) {
        TACC_RETURN_IF_ERROR(Moments(node));
      } else {
        TACC_RETURN_IF_ERROR(Numbers(node));
      }
      graph_.nodes.push_back(std::move(node));
    }
    return absl::OkStatus();
  }

 private:
  // The first dim must be the samples, or more rows of each, one sample's behind the other's.
  absl::Status CheckRows(const Node& sums, const std::vector<int>& producers, const std::vector<Node>& nodes) {
    const ValueId x = sums.operands[0];
    ValueId whole = x;
    while (producers[whole] >= 0 && nodes[producers[whole]].op == "reshape")
      whole = nodes[producers[whole]].operands[0];
    for (const ValueId v : {x, whole}) {
      if (graph_.type(v).rank() > 0 && graph_.type(v).dims[0] == samples_) return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the batch norm at ", sums.module.empty() ? "the top level" : sums.module, " normalizes ",
                     graph_.type(x).ToString(), ", whose first dim is not that of the ", samples_,
                     " samples, so a rank has no samples of its own there; use compute.sync_batchnorm: true"));
  }

  // Of each group its own, or, of running statistics, those of the first.
  absl::Status Moments(Node& node) {
    auto extents = GetAttr<Dims>(node.attrs, "extents");
    if (extents.empty() || extents[0] % groups_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat("batch_moments at ", node.module, ": ", groups_,
                                                     " groups do not divide extents=", DimsToString(extents)));
    }
    extents[0] /= groups_;
    node.attrs["extents"] = extents;
    if (node.operands.size() == 2) return InferGrouped(node);
    Builder b(graph_, ops_);
    b.SetModule(node.module);
    for (const int i : {0, 1})
      node.operands[i] = b.Reshape(b.Slice(node.operands[i], 0, 0, 1), {graph_.type(node.operands[i]).dims[1]});
    return b.status();
  }

  // What is computed of statistics, a number a channel, is computed of each group's.
  absl::Status Numbers(Node& node) {
    bool has_grouped = false;
    for (const ValueId v : node.operands) has_grouped |= IsGrouped(v);
    if (!has_grouped) return absl::OkStatus();
    const bool is_affine = node.op == "channel_affine";
    for (size_t i = is_affine ? 1 : 0; i < node.operands.size(); ++i) {
      // Other ops repeat their second operand by themselves.
      if (IsGrouped(node.operands[i]) || (!is_affine && i > 0)) continue;
      TACC_ASSIGN_OR_RETURN(node.operands[i], Repeated(node.operands[i], node.module));
    }
    return is_affine ? absl::OkStatus() : InferGrouped(node);
  }

  absl::StatusOr<ValueId> Repeated(ValueId numbers, const std::string& module) {
    Builder b(graph_, ops_);
    b.SetModule(module);
    const TensorType& type = graph_.type(numbers);
    if (type.rank() == 0) return numbers;
    const Dims shape = {groups_, type.dims[0]};
    const ValueId repeated = b.Add("broadcast", {numbers}, {{"shape", shape}, {"dims", Dims{1}}});
    TACC_RETURN_IF_ERROR(b.status());
    return repeated;
  }

  // Types of results that are now of each group.
  absl::Status InferGrouped(const Node& node) {
    const OpCall call = CallOf(graph_, node);
    const OpDef* def = ops_.Find(node.op);
    absl::StatusOr<std::vector<TensorType>> types = def->infer(call);
    if (!types.ok()) {
      return absl::UnimplementedError(absl::StrCat(node.op.name(), " at ", node.module,
                                                   " of a batch norm's statistics: ", types.status().message(),
                                                   "; use compute.sync_batchnorm: true"));
    }
    is_grouped_.resize(graph_.values.size(), 0);
    for (size_t i = 0; i < types->size(); ++i) {
      graph_.values[node.results[i]].type = (*types)[i];
      is_grouped_[node.results[i]] = 1;
    }
    return absl::OkStatus();
  }

  bool IsGrouped(ValueId v) const { return static_cast<size_t>(v) < is_grouped_.size() && is_grouped_[v] != 0; }

  Graph& graph_;
  const OpTable& ops_;
  const int64_t groups_;
  const int64_t samples_;
  std::vector<char> is_grouped_;  // by value
};

}  // namespace

absl::Status GroupStatistics(Graph& forward, const OpTable& ops, int64_t groups) {
  return groups > 1 ? Grouping(forward, ops, groups).Run() : absl::OkStatus();
}

}  // namespace tacc::graph
