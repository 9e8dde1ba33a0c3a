#include "graph/planner/simulate/cluster_times.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/analysis/cost.h"

namespace tacc::graph {
namespace {

// How a collective moves `bytes` (as CollectiveSeconds takes them).
struct Traffic {
  CollectiveKind kind;
  double bytes = 0;
};

std::optional<Traffic> TrafficOf(const Graph& graph, const Node& node, int64_t group_size) {
  const auto in = [&] { return static_cast<double>(graph.type(node.operands[0]).bytes()); };
  if (node.op == "all_gather") return Traffic{CollectiveKind::kAllGather, in() * static_cast<double>(group_size)};
  if (node.op == "reduce_scatter") return Traffic{CollectiveKind::kReduceScatter, in()};
  if (node.op == "all_reduce" || node.op == "stage_sum") return Traffic{CollectiveKind::kAllReduce, in()};
  if (node.op == "all_to_all") return Traffic{CollectiveKind::kAllToAll, in()};
  return std::nullopt;
}

// Seconds that the traffic takes of a device's link and of its share of the network at their peaks.
struct Wires {
  double link = 0;
  double network = 0;
};
Wires WiresOf(const Machine& machine, const Traffic& traffic, const GroupShape& group) {
  const double n = static_cast<double>(group.size), m = static_cast<double>(group.in_node);
  const double intra = machine.intra_bytes_per_second * machine.bandwidth_fraction;
  const double inter = machine.inter_bytes_per_second * machine.bandwidth_fraction;
  const bool crosses = group.num_nodes() > 1;
  if (traffic.kind == CollectiveKind::kAllToAll)
    return {traffic.bytes * (m - 1) / n / intra, crosses ? traffic.bytes * (n - m) / n / inter : 0};
  const double moved = traffic.bytes * (n - 1) / n * (traffic.kind == CollectiveKind::kAllReduce ? 2 : 1);
  return {m > 1 ? moved / intra : 0, crosses ? moved / (m * inter) : 0};
}

// What the stash holds goes to the neighbouring stage.
NodeTime SendTime(const Machine& machine, const Mesh& mesh, const Graph& graph, const Node& send) {
  NodeTime time;
  for (const Node& node : graph.nodes) {
    if (node.op != "store" || node.symbol != send.symbol) continue;
    const GroupShape group = ShapeOf(mesh, {mesh.Find(kStageAxis)}, machine.devices_per_node);
    time.seconds = CollectiveSeconds(machine, CollectiveKind::kSend,
                                     static_cast<double>(graph.type(node.operands[0]).bytes()), group);
    (group.in_node > 1 ? time.link : time.network) = 1;
  }
  return time;
}

}  // namespace

NodeTimes TimesOn(const Cluster& cluster, const Mesh& mesh, const OpTable& ops) {
  return [machine = cluster.machine, mesh, &ops](int, const Graph& graph, const Node& node) {
    NodeTime time;
    const OpDef* def = ops.Find(node.op);
    if (def == nullptr) return time;
    if (node.op == "send") return SendTime(machine, mesh, graph, node);
    if (node.op == "recv" || node.op == "finish") return time;  // the message is the sender's
    if (def->is_collective) {
      AxisList axes;
      auto over = GetAttr<std::vector<std::string>>(node.attrs, "over");
      if (node.op == "stage_sum") {
        const auto stages = GetAttr<std::vector<int64_t>>(node.attrs, "stages");
        over = {kStageAxis};
        time.meeting = absl::StrCat("sum over stages ", absl::StrJoin(stages, " "));
        time.parties = static_cast<int>(stages.size());
      }
      for (const std::string& name : over) axes.push_back(mesh.Find(name));
      const GroupShape group = ShapeOf(mesh, axes, machine.devices_per_node);
      const std::optional<Traffic> traffic = TrafficOf(graph, node, group.size);
      if (!traffic.has_value()) return time;
      // On a CPU one thread runs all collectives.
      time.communicator = machine.shares_cores ? "all" : absl::StrJoin(over, " ");
      time.seconds = CollectiveSeconds(machine, traffic->kind, traffic->bytes, group);
      if (time.seconds <= 0) return time;
      const Wires wires = WiresOf(machine, *traffic, group);
      time.link = wires.link / time.seconds;
      time.network = wires.network / time.seconds;
      time.device = machine.shares_cores ? 1 : 0;
      return time;
    }
    time.device = 1;
    const OpCall call = CallOf(graph, node);
    if (IsFree(*def, call, node)) return time;
    double bytes = 0;
    for (const TensorType& type : call.operands) bytes += static_cast<double>(type.bytes());
    for (const TensorType& type : call.results) bytes += static_cast<double>(type.bytes());
    const double flops = def->is_matmul && def->flops ? def->flops(call) : 0;
    const DType dtype = call.operands.empty() ? DType::kF32 : call.in(0).dtype;
    time.seconds = KernelSeconds(machine, dtype, flops, bytes);
    return time;
  };
}

}  // namespace tacc::graph
