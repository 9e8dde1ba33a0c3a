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

// The extents of an einsum, or of products by expert, of which each has its part of the slots; else large.
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

// The times of a cluster's nodes: what TimesOn returns calls it.
class ClusterTimes {
 public:
  ClusterTimes(const Cluster& cluster, const std::vector<const Program*>& stages, const OpTable& ops)
      : machine_(cluster.machine),
        own_sums_(cluster.machine),
        ranks_{machine_.shares_cores, machine_.sums_in_order, machine_.devices_per_node},
        host_(machine_.cpus > 0 ? 1 / machine_.cpus / static_cast<double>(stages.size()) : 0),
        mesh_(stages[0]->mesh),
        ops_(ops) {
    own_sums_.sums_in_order = !machine_.shares_cores;
    for (const Program* program : stages) {
      for (const State& state : program->states) state_bytes_[state.name] = state.type.bytes();
    }
  }

  NodeTime operator()(int stage, const Graph& graph, const Node& node) const {
    if (node.op == Op::kSend || node.op == Op::kRecv) return Message(stage, node);
    const OpDef* def = ops_.Find(node.op);
    if (def == nullptr) return {};
    if (def->is_collective) return Collective(graph, node);
    NodeTime time;
    time.device = 1;
    time.host = machine_.threads * host_;
    time.seconds = LocalSeconds(machine_, *def, node, CallOf(graph, node));
    return time;
  }

 private:
  NodeTime Message(int stage, const Node& node) const {
    const bool is_send = node.op == Op::kSend;
    const int64_t other = GetAttr<int64_t>(node.attrs, is_send ? "to" : "from");
    const auto bytes = state_bytes_.find(node.symbol);
    const Traffic traffic{CollectiveKind::kSend, bytes == state_bytes_.end() ? 0 : static_cast<double>(bytes->second)};
    // The first rank of each stage stands for all of it.
    const int64_t stride = mesh_.Stride(mesh_.Find(kStageAxis)), per_node = machine_.devices_per_node;
    const bool in_node = per_node == 0 || stage * stride / per_node == other * stride / per_node;
    NodeTime time;
    time.communicator = CommunicatorOf(node);
    AddTransfer(machine_, node, traffic, {2, in_node ? 2 : 1}, /*packed_bytes=*/0, time);
    time.meeting = time.communicator;
    time.parties = 2;
    if (is_send) time.sent_bytes = static_cast<int64_t>(traffic.bytes);
    return time;
  }

  NodeTime Collective(const Graph& graph, const Node& node) const {
    NodeTime time;
    const GroupShape group = GroupOf(node, mesh_, machine_.devices_per_node);
    if (const auto among = GetAttr<std::vector<int64_t>>(node.attrs, "stages"); !among.empty()) {
      time.meeting = absl::StrCat(node.op.name(), " of stages ", absl::StrJoin(among, " "));
      time.parties = static_cast<int>(among.size());
    }
    const std::optional<Traffic> traffic = TrafficOf(ranks_, graph, node, group);
    if (!traffic.has_value()) return time;
    const bool widens = !node.operands.empty() && !node.results.empty() &&
                        graph.type(node.operands[0]).dtype != graph.type(node.results[0]).dtype;
    // On a CPU one thread runs all collectives.
    time.communicator = machine_.shares_cores ? kHostCommunicator : CommunicatorOf(node);
    AddTransfer(widens ? own_sums_ : machine_, node, *traffic, group, PackedBytes(graph, node, mesh_, ranks_), time);
    time.sent_bytes = SentBytes(graph, node, mesh_, ranks_);
    return time;
  }

  // Adds to `time` what the traffic takes. `packed_bytes` are copied before and after it, where it runs.
  void AddTransfer(const Machine& machine, const Node& node, const Traffic& traffic, const GroupShape& group,
                   int64_t packed_bytes, NodeTime& time) const {
    time.seconds = CollectiveSeconds(machine, traffic.kind, traffic.bytes, group) +
                   CopySeconds(machine, static_cast<double>(packed_bytes));
    if (time.seconds <= 0) return;
    const LinkBytes moved = BytesOverLinks(machine, traffic.kind, traffic.bytes, group);
    time.link = moved.intra / (machine.intra_bytes_per_second * machine.bandwidth_fraction) / time.seconds;
    time.network = moved.inter / (machine.inter_bytes_per_second * machine.bandwidth_fraction) / time.seconds;
    if (node.op != Op::kRecv) time.sent = moved;
    time.device = machine.shares_cores ? 1 : 0;
    // Loopback is as fast as a processor that sends beside one that receives; in an exchange each rank does both.
    time.host = node.op == Op::kSend || node.op == Op::kRecv ? host_ : 2 * host_;
  }

  Machine machine_;
  Machine own_sums_;  // the same, for sums of two types: no library has them, so that GPUs' ranks take them themselves
  CollectiveRanks ranks_;
  double host_;  // of NodeTime::host: a thread of each of a stage's ranks
  Mesh mesh_;
  std::map<std::string, int64_t> state_bytes_;  // what messages carry; a stash is alike on both of its stages
  const OpTable& ops_;
};

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
  return ClusterTimes(cluster, stages, ops);
}

}  // namespace tacc::graph
