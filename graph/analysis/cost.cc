#include "graph/analysis/cost.h"

#include <algorithm>

namespace tacc::graph {
namespace {

double Peak(const DeviceProfile& device, DType dtype) {
  auto it = device.matmul_flops_per_second.find(dtype);
  if (it == device.matmul_flops_per_second.end()) it = device.matmul_flops_per_second.find(DType::kF32);
  return it == device.matmul_flops_per_second.end() ? 0.0 : it->second;
}

}  // namespace

bool IsFree(const OpDef& def, const OpCall& call, const Node& node) {
  if (!node.symbol.empty() || node.op == "wait") return true;
  if (!def.aliases) return false;
  const std::vector<int> aliases = def.aliases(call);
  return !aliases.empty() && aliases[0] >= 0;
}

DType ProductType(const OpCall& call) { return call.in(1).dtype; }

std::optional<AttentionMask> MaskOfAttention(const std::string& op, const OpCall& call) {
  const bool is_gradient = op == "attention_grad";
  if (op == "attention_continue") return AttentionMask::kAny;
  if (op != "attention" && !is_gradient) return std::nullopt;
  const size_t num_operands = is_gradient ? 6 : 3;  // without document_start
  const bool is_any = call.operands.size() > num_operands || call.attrs->count("alibi_slopes") > 0 ||
                      call.attr<int64_t>("zigzag") > 1 || call.attr<int64_t>("block") > 0;
  return is_any ? AttentionMask::kAny : AttentionMask::kPlain;
}

int64_t SentBytes(const Graph& graph, const Node& node, const Mesh& mesh) {
  AxisList axes;
  for (const std::string& name : GetAttr<std::vector<std::string>>(node.attrs, "over")) axes.push_back(mesh.Find(name));
  const int64_t n = NumShards(mesh, axes);
  if (node.op == "stage_sum") {
    const auto stages = static_cast<int64_t>(GetAttr<std::vector<int64_t>>(node.attrs, "stages").size());
    return 2 * (stages - 1) * graph.type(node.operands[0]).bytes() / std::max<int64_t>(stages, 1);
  }
  if (node.op == "all_gather") return (n - 1) * graph.type(node.operands[0]).bytes();
  if (node.op == "reduce_scatter")
    return (n - 1) * graph.type(node.results[0]).num_elements() * ByteSize(graph.type(node.operands[0]).dtype);
  if (node.op == "all_reduce")
    return (n - 1) * (graph.type(node.operands[0]).bytes() + graph.type(node.results[0]).bytes()) / n;
  if (node.op == "all_to_all") return (n - 1) * graph.type(node.operands[0]).bytes() / n;
  if (node.op == "rotate_blocks" && n > 1) return graph.type(node.operands[0]).bytes();
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
      int64_t sent = SentBytes(graph, node, program.mesh);
      if (node.op == "send") sent = program.FindState(node.symbol)->type.bytes();
      if (sent > 0) {
        cost.sent_bytes += sent;
        ++cost.num_collectives;
        cost.communication_seconds +=
            device.link_latency_seconds + static_cast<double>(sent) / std::max(device.link_bytes_per_second, 1.0);
        continue;
      }
      const OpCall call = CallOf(graph, node);
      if (IsFree(*def, call, node)) continue;
      double bytes = 0;
      for (const TensorType& type : call.operands) bytes += static_cast<double>(type.bytes());
      for (const TensorType& type : call.results) bytes += static_cast<double>(type.bytes());
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
  }
  return step;
}

}  // namespace tacc::graph
