#include "graph/planner/simulate/cluster_times.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "graph/analysis/cost.h"
#include "graph/ops/einsum_spec.h"
#include "graph/trace/step_trace.h"

namespace tacc::graph {
namespace {

// How a collective moves `bytes` (as CollectiveSeconds takes them).
struct Traffic {
  CollectiveKind kind;
  double bytes = 0;
};

std::optional<Traffic> TrafficOf(const CollectiveRanks& ranks, const Graph& graph, const Node& node,
                                 const GroupShape& group) {
  const auto in = [&] { return static_cast<double>(graph.type(node.operands[0]).bytes()); };
  if (node.op == Op::kAllGather) return Traffic{CollectiveKind::kAllGather, in() * static_cast<double>(group.size)};
  if (node.op == Op::kReduceScatter) return Traffic{CollectiveKind::kReduceScatter, in()};
  if (node.op == Op::kAllReduce || node.op == Op::kStageSum) {
    if (IsWholeAllReduce(graph, node, group, ranks)) return Traffic{CollectiveKind::kWholeAllReduce, in()};
    // Parts are summed in the operand's type, and gathered in the result's.
    const double out = static_cast<double>(graph.type(node.results[0]).bytes());
    return Traffic{CollectiveKind::kAllReduce, (in() + out) / 2};
  }
  if (node.op == Op::kAllToAll) return Traffic{CollectiveKind::kAllToAll, in()};
  if (node.op == Op::kRotateBlocks) return Traffic{CollectiveKind::kRotate, in()};
  return std::nullopt;
}

// The extents of an einsum, and of products by expert, of which each has its part of the slots; else large.
ProductShape ShapeOfProduct(const Node& node, const OpCall& call, double flops) {
  if (node.op == "expert_matmul" || node.op == "expert_matmul_grad") {
    const bool is_gradient = node.op == "expert_matmul_grad", is_transposed = call.attr<bool>("transposed");
    const Dims& matrices = is_gradient ? call.out(0).dims : call.in(2).dims;
    const auto experts = static_cast<double>(matrices[0]), m = static_cast<double>(matrices[is_transposed ? 2 : 1]),
               n = static_cast<double>(matrices[is_transposed ? 1 : 2]);
    const double slots = flops / (2 * experts * m * n);
    return is_gradient ? ProductShape{m, n, slots, SlotsAre::kDepth} : ProductShape{slots, m, n, SlotsAre::kRows};
  }
  const auto spec = ParseEinsum(call.attr<std::string>("spec"));
  if (!spec.ok()) return {};
  const Factors factors = FactorsOf(call, node.op == "einsum_accumulate" ? 1 : 0);  // which has the sum before
  const auto extents = EinsumExtents(*spec, factors.a, factors.b);
  if (!extents.ok()) return {};
  ProductShape shape{1, 1, 1};
  for (const auto& [letter, extent] : *extents) {
    const bool in_a = spec->a.find(letter) != std::string::npos, in_b = spec->b.find(letter) != std::string::npos;
    const bool in_y = spec->y.find(letter) != std::string::npos;
    if (in_a && in_b && in_y) continue;
    (!in_y ? shape.depth : in_a ? shape.rows : shape.columns) *= static_cast<double>(extent);
  }
  return shape;
}

}  // namespace

double LocalSeconds(const Machine& machine, const OpDef& def, const Node& node, const OpCall& call) {
  if (IsFree(def, call, node)) return 0;
  const auto bytes = static_cast<double>(TouchedBytes(def, call));
  double seconds = 0;
  if (const auto mask = MaskOfAttention(node.op, call); mask.has_value()) {
    const double flops = def.flops(call);
    const AttentionExtras extras = ExtrasOfAttention(node.op, call, flops);
    seconds =
        AttentionSeconds(machine, ProductType(call), *mask, flops, extras.exponentials, bytes, extras.repeated_flops);
  } else if (def.is_matmul && def.flops) {
    const double flops = def.flops(call);
    seconds = KernelSeconds(machine, ProductType(call), flops, bytes, ShapeOfProduct(node, call, flops));
  } else {
    seconds = KernelSeconds(machine, DType::kF32, 0, bytes);
  }
  return IssuedSeconds(machine, seconds, 1);
}

NodeTimes TimesOn(const Cluster& cluster, const std::vector<const Program*>& stages, const OpTable& ops) {
  std::map<std::string, int64_t> state_bytes;  // what messages carry; a stash is alike on both of its stages
  for (const Program* program : stages) {
    for (const State& state : program->states) state_bytes[state.name] = state.type.bytes();
  }
  const Machine& machine = cluster.machine;
  const CollectiveRanks ranks{machine.shares_cores, machine.sums_in_order, machine.devices_per_node};
  // Of a thread of each of a stage's ranks.
  const double host = machine.cpus > 0 ? 1 / machine.cpus / static_cast<double>(stages.size()) : 0;
  // Sums of two types are no library's.
  Machine own_sums = machine;
  own_sums.sums_in_order = !machine.shares_cores;
  return [cluster_machine = machine, own_sums, ranks, host, mesh = stages[0]->mesh,
          state_bytes = std::move(state_bytes), &ops](int stage, const Graph& graph, const Node& node) {
    NodeTime time;
    const bool widens = !node.operands.empty() && !node.results.empty() &&
                        graph.type(node.operands[0]).dtype != graph.type(node.results[0]).dtype;
    const Machine& machine = widens ? own_sums : cluster_machine;
    // `packed`: bytes that are copied before and after it, where it runs.
    const auto transfer = [&](const Traffic& traffic, const GroupShape& group, const std::string& communicator,
                              int64_t packed) {
      time.communicator = communicator;
      time.seconds = CollectiveSeconds(machine, traffic.kind, traffic.bytes, group) + CopySeconds(machine, packed);
      if (time.seconds <= 0) return;
      const LinkBytes moved = BytesOverLinks(machine, traffic.kind, traffic.bytes, group);
      time.link = moved.intra / (machine.intra_bytes_per_second * machine.bandwidth_fraction) / time.seconds;
      time.network = moved.inter / (machine.inter_bytes_per_second * machine.bandwidth_fraction) / time.seconds;
      if (node.op != Op::kRecv) time.sent = moved;
      time.device = machine.shares_cores ? 1 : 0;
      // Loopback is as fast as a processor that sends beside one that receives; in an exchange each rank does both.
      time.host = node.op == Op::kSend || node.op == Op::kRecv ? host : 2 * host;
    };
    if (node.op == Op::kSend || node.op == Op::kRecv) {
      const bool is_send = node.op == Op::kSend;
      const int64_t other = GetAttr<int64_t>(node.attrs, is_send ? "to" : "from");
      const auto bytes = state_bytes.find(node.symbol);
      const Traffic traffic{CollectiveKind::kSend, bytes == state_bytes.end() ? 0 : static_cast<double>(bytes->second)};
      // Of the first rank of each stage.
      const int64_t stride = mesh.Stride(mesh.Find(kStageAxis)), per_node = machine.devices_per_node;
      const bool in_node = per_node == 0 || stage * stride / per_node == other * stride / per_node;
      const std::string channel = CommunicatorOf(node);
      transfer(traffic, {2, in_node ? 2 : 1}, channel, 0);
      time.meeting = channel;
      time.parties = 2;
      if (is_send) time.sent_bytes = static_cast<int64_t>(traffic.bytes);
      return time;
    }
    const OpDef* def = ops.Find(node.op);
    if (def == nullptr) return time;
    if (def->is_collective) {
      const GroupShape group = GroupOf(node, mesh, machine.devices_per_node);
      if (const auto among = GetAttr<std::vector<int64_t>>(node.attrs, "stages"); !among.empty()) {
        time.meeting = absl::StrCat(node.op.name(), " of stages ", absl::StrJoin(among, " "));
        time.parties = static_cast<int>(among.size());
      }
      const std::optional<Traffic> traffic = TrafficOf(ranks, graph, node, group);
      if (!traffic.has_value()) return time;
      // On a CPU one thread runs all collectives.
      transfer(*traffic, group, machine.shares_cores ? kHostCommunicator : CommunicatorOf(node),
               PackedBytes(graph, node, mesh, ranks));
      time.sent_bytes = SentBytes(graph, node, mesh, ranks);
      return time;
    }
    time.device = 1;
    time.host = machine.threads * host;
    time.seconds = LocalSeconds(machine, *def, node, CallOf(graph, node));
    return time;
  };
}

}  // namespace tacc::graph
