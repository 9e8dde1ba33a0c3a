#include "graph/analysis/cost.h"

#include <algorithm>

#include "graph/ir/collective_limits.h"

namespace tacc::graph {
namespace {

double Peak(const DeviceProfile& device, DType dtype) {
  auto it = device.matmul_flops_per_second.find(dtype);
  if (it == device.matmul_flops_per_second.end()) it = device.matmul_flops_per_second.find(DType::kF32);
  return it == device.matmul_flops_per_second.end() ? 0.0 : it->second;
}

// Of the group that a collective runs in, but of stages.
int64_t NumMembers(const Node& node, const Mesh& mesh) {
  AxisList axes;
  for (const std::string& name : GetAttr<std::vector<std::string>>(node.attrs, "over")) axes.push_back(mesh.Find(name));
  return NumShards(mesh, axes);
}

}  // namespace

bool IsFree(const OpDef& def, const OpCall& call, const Node& node) {
  if (!node.symbol.empty() || node.op == "wait") return true;
  if (!def.aliases) return false;
  const std::vector<int> aliases = def.aliases(call);
  return !aliases.empty() && aliases[0] >= 0;
}

DType ProductType(const OpCall& call) {
  // A sum that a product is added to may be wider; attention's heads that are one tensor stand first.
  return call.operands.size() > 1 && IsFloating(call.in(1).dtype) ? call.in(1).dtype : call.in(0).dtype;
}

std::optional<AttentionMask> MaskOfAttention(const std::string& op, const OpCall& call) {
  static const std::map<std::string, size_t> kNumOperands = {// without document_start
                                                             {"attention", 3},
                                                             {"attention_grad", 6},
                                                             {"attention_joined", 1},
                                                             {"attention_joined_grad", 4}};
  if (op == "attention_continue") return AttentionMask::kAny;
  const auto found = kNumOperands.find(op);
  if (found == kNumOperands.end()) return std::nullopt;
  const size_t num_operands = found->second;
  const bool is_any = call.operands.size() > num_operands || call.attrs->count("alibi_slopes") > 0 ||
                      call.attr<int64_t>("zigzag") > 1 || call.attr<int64_t>("block") > 0;
  return is_any ? AttentionMask::kAny : AttentionMask::kPlain;
}

int64_t SentBytes(const Graph& graph, const Node& node, const Mesh& mesh, bool on_cpus) {
  const bool is_stage_sum = node.op == "stage_sum";
  const int64_t n = is_stage_sum ? static_cast<int64_t>(GetAttr<std::vector<int64_t>>(node.attrs, "stages").size())
                                 : NumMembers(node, mesh);
  if (n < 2) return 0;
  if (is_stage_sum || node.op == "all_reduce") {
    const TensorType &in = graph.type(node.operands[0]), &out = graph.type(node.results[0]);
    if (on_cpus && in.num_elements() <= WholeAllReduceElements(n)) return (n - 1) * in.bytes();
    return (n - 1) * (in.bytes() + out.bytes()) / n;
  }
  if (node.op == "all_gather") return (n - 1) * graph.type(node.operands[0]).bytes();
  if (node.op == "reduce_scatter")
    return (n - 1) * graph.type(node.results[0]).num_elements() * ByteSize(graph.type(node.operands[0]).dtype);
  if (node.op == "all_to_all") return (n - 1) * graph.type(node.operands[0]).bytes() / n;
  if (node.op == "rotate_blocks") return graph.type(node.operands[0]).bytes();
  return 0;
}

int64_t PackedBytes(const Graph& graph, const Node& node, const Mesh& mesh, bool sums_in_order) {
  const int64_t n = NumMembers(node, mesh);
  if (n < 2) return 0;
  const Value &from = graph.values[node.operands[0]], &to = graph.values[node.results[0]];
  // Whether the parts along the dim named by the attribute are equal and lie side by side in at most so many rows.
  const auto rows_of = [&](const Value& whole, const char* name) {
    const auto dim = static_cast<size_t>(GetAttr<int64_t>(node.attrs, name));
    int64_t rows = 1;
    for (size_t i = 0; i < dim; ++i) rows *= whole.type.dims[i];
    return rows;
  };
  const auto lie_in = [&](int64_t max_rows, const Value& whole, const Value& part, const char* name) {
    const auto dim = static_cast<size_t>(GetAttr<int64_t>(node.attrs, name));
    return rows_of(whole, name) <= max_rows &&
           !IsPadded(part.placement->global.dims[dim], part.placement->sharding.dims[dim], mesh);
  };
  const int64_t in = from.type.bytes(), out = to.type.bytes();
  if (node.op == "all_gather") return lie_in(kMaxRowsInPlace, to, from, "dim") ? 0 : out;
  if (node.op == "reduce_scatter" && (sums_in_order || from.type.dtype != to.type.dtype))
    return rows_of(from, "dim") == 1 ? 0 : in;
  if (node.op == "reduce_scatter") return lie_in(kMaxRowsInPlace, from, to, "dim") ? 0 : in + out;
  if (node.op == "all_to_all") {
    // Each part but the rank's own.
    return (n - 1) * ((lie_in(1, from, to, "split_dim") ? 0 : in) + (lie_in(1, to, from, "concat_dim") ? 0 : out)) / n;
  }
  return 0;
}

double ModelFlops(const Program& program, const OpTable& ops) {
  double total = 0;
  for (const Call& call : program.step) {
    const Graph* graph = program.FindGraph(call.graph);
    if (graph == nullptr) continue;
    for (const Node& node : graph->nodes) {
      const OpDef* def = ops.Find(node.op);
      if (def == nullptr || !def->is_matmul || !def->flops || node.recompute > 0) continue;
      total += def->flops(LogicalCallOf(*graph, node));
    }
  }
  return total;
}

StepCost EstimateStep(const Program& program, const OpTable& ops, const DeviceProfile& device) {
  StepCost step;
  std::map<std::string, StepCost> graphs;
  for (const Graph& graph : program.graphs) {
    StepCost& cost = graphs[graph.name];
    for (const Node& node : graph.nodes) {
      const OpDef* def = ops.Find(node.op);
      if (def == nullptr) continue;
      int64_t sent = SentBytes(graph, node, program.mesh, device.kind == "cpu");
      if (node.op == "send") sent = program.FindState(node.symbol)->type.bytes();
      if (sent > 0) {
        cost.sent_bytes += sent;
        ++cost.num_collectives;
        if (const int64_t packed = PackedBytes(graph, node, program.mesh, device.sums_in_order); packed > 0) {
          cost.packed_bytes += packed;
          ++cost.num_packed;
        }
        cost.communication_seconds +=
            device.link_latency_seconds + static_cast<double>(sent) / std::max(device.link_bytes_per_second, 1.0);
        continue;
      }
      const OpCall call = CallOf(graph, node);
      if (IsFree(*def, call, node)) continue;
      const auto bytes = static_cast<double>(TouchedBytes(*def, call));
      double seconds = bytes / std::max(device.memory_bytes_per_second, 1.0);
      const double flops = def->flops ? def->flops(call) : 0;
      if (def->is_matmul) {
        cost.matmul_flops += flops;
        seconds = std::max(seconds, flops / std::max(Peak(device, ProductType(call)), 1.0));
      }
      cost.compute_seconds += seconds;
    }
  }
  for (const Call& call : program.step) {
    const StepCost& cost = graphs[call.graph];
    step.matmul_flops += cost.matmul_flops;
    step.compute_seconds += cost.compute_seconds;
    step.communication_seconds += cost.communication_seconds;
    step.sent_bytes += cost.sent_bytes;
    step.num_collectives += cost.num_collectives;
    step.packed_bytes += cost.packed_bytes;
    step.num_packed += cost.num_packed;
  }
  return step;
}

}  // namespace tacc::graph
