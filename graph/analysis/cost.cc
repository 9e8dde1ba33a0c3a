#include "graph/analysis/cost.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "graph/ir/collective_limits.h"
#include "graph/ops/attention_operands.h"
#include "graph/targets/targets.h"

namespace tacc::graph {
namespace {

double Peak(const DeviceProfile& device, DType dtype) {
  auto it = device.matmul_flops_per_second.find(dtype);
  if (it == device.matmul_flops_per_second.end()) it = device.matmul_flops_per_second.find(DType::kF32);
  return it == device.matmul_flops_per_second.end() ? 0.0 : it->second;
}

bool IsAllReduce(const Node& node) { return node.op == Op::kAllReduce || node.op == Op::kStageSum; }

// Whether ranks on GPUs take the sum themselves, not their library.
bool IsOwnSum(const Graph& graph, const Node& node, const CollectiveRanks& ranks) {
  return ranks.sums_in_order || graph.type(node.operands[0]).dtype != graph.type(node.results[0]).dtype;
}

// Bytes of a value's memory that the rank's part of dim `dim` takes: without the padding of that dim.
int64_t HeldBytes(const Value& value, size_t dim, const Mesh& mesh, int64_t rank) {
  const int64_t extent = value.type.dims[dim];
  if (!value.placement.has_value()) return value.type.bytes();
  const Range held =
      LocalRange(value.placement->global.dims[dim], value.placement->sharding.dims[dim], mesh, mesh.Coordinates(rank));
  return extent == 0 ? 0 : value.type.bytes() / extent * (held.end - held.begin);
}

// How many rows the parts of `whole` along a dim lie in.
int64_t NumRows(const Value& whole, size_t dim) {
  int64_t rows = 1;
  for (size_t i = 0; i < dim; ++i) rows *= whole.type.dims[i];
  return rows;
}

size_t DimOf(const Node& node, const char* attribute) {
  return static_cast<size_t>(GetAttr<int64_t>(node.attrs, attribute));
}

// PackedBytes of each kind of collective.

int64_t PackedForAllReduce(const Graph& graph, const Node& node, const GroupShape& group,
                           const CollectiveRanks& ranks) {
  const int64_t elements = graph.type(node.operands[0]).num_elements();
  const bool is_gathered = !ranks.on_cpus && IsOwnSum(graph, node, ranks) &&
                           !IsWholeAllReduce(graph, node, group, ranks) &&
                           AllReducePiece(elements, group.size) * group.size != elements;
  return is_gathered ? graph.type(node.results[0]).bytes() : 0;
}

// Each part but the rank's own; none of its dims are padded.
int64_t PackedForAllToAll(const Graph& graph, const Node& node, const GroupShape& group) {
  const Value &from = graph.values[node.operands[0]], &to = graph.values[node.results[0]];
  const int64_t in = NumRows(from, DimOf(node, "split_dim")) == 1 ? 0 : from.type.bytes();
  const int64_t out = NumRows(to, DimOf(node, "concat_dim")) == 1 ? 0 : to.type.bytes();
  return (group.size - 1) * (in + out) / group.size;
}

// An all-gather or a reduce-scatter.
int64_t PackedForShards(const Graph& graph, const Node& node, const GroupShape& group, const Mesh& mesh,
                        const CollectiveRanks& ranks) {
  const bool gathers = node.op == Op::kAllGather;
  const Value& whole = graph.values[gathers ? node.results[0] : node.operands[0]];
  const Value& part = graph.values[gathers ? node.operands[0] : node.results[0]];
  const size_t dim = DimOf(node, "dim");
  const int64_t bytes = HeldBytes(whole, dim, mesh, ranks.rank);
  const int64_t held = HeldBytes(part, dim, mesh, ranks.rank);
  const int64_t rows = NumRows(whole, dim);
  if (ranks.on_cpus || (!gathers && IsOwnSum(graph, node, ranks))) {
    if (rows == 1) return 0;
    // A result with padding in its rows is no row.
    return bytes + (!gathers && held < part.type.bytes() ? held : 0);
  }
  const bool are_equal = held * group.size == bytes && part.type.bytes() * group.size == bytes;
  if (are_equal && rows <= kMaxRowsInPlace) return 0;
  return bytes + (gathers ? 0 : held);
}

// One run of the graph.
StepCost CostOf(const Program& program, const Graph& graph, const OpTable& ops, const DeviceProfile& device,
                const CollectiveRanks& ranks) {
  StepCost cost;
  for (const Node& node : graph.nodes) {
    const OpDef* def = ops.Find(node.op);
    if (def == nullptr) continue;
    int64_t sent = SentBytes(graph, node, program.mesh, ranks);
    if (node.op == Op::kSend) sent = program.FindState(node.symbol)->type.bytes();
    if (sent > 0) {
      cost.sent_bytes += sent;
      ++cost.num_collectives;
      const int64_t packed = PackedBytes(graph, node, program.mesh, ranks);
      cost.packed_bytes += packed;
      if (packed > 0) ++cost.num_packed;
      cost.communication_seconds += device.link_latency_seconds +
                                    static_cast<double>(sent) / std::max(device.link_bytes_per_second, 1.0) +
                                    2 * static_cast<double>(packed) / std::max(device.memory_bytes_per_second, 1.0);
      continue;
    }
    const OpCall call = CallOf(graph, node);
    if (IsFree(*def, call, node)) continue;
    const auto bytes = static_cast<double>(TouchedBytes(*def, call));
    double seconds = bytes / std::max(device.memory_bytes_per_second, 1.0);
    if (def->is_matmul) {
      const double flops = def->flops ? def->flops(call) : 0;
      cost.matmul_flops += flops;
      seconds = std::max(seconds, flops / std::max(Peak(device, ProductType(call)), 1.0));
    }
    cost.compute_seconds += seconds;
  }
  return cost;
}

void Add(const StepCost& cost, StepCost& sum) {
  sum.matmul_flops += cost.matmul_flops;
  sum.compute_seconds += cost.compute_seconds;
  sum.communication_seconds += cost.communication_seconds;
  sum.sent_bytes += cost.sent_bytes;
  sum.num_collectives += cost.num_collectives;
  sum.packed_bytes += cost.packed_bytes;
  sum.num_packed += cost.num_packed;
}

}  // namespace

bool IsFree(const OpDef& def, const OpCall& call, const Node& node) {
  if (!node.symbol.empty() || node.op == Op::kWait) return true;
  if (!def.aliases) return false;
  const std::vector<int> aliases = def.aliases(call);
  return !aliases.empty() && aliases[0] >= 0;
}

DType ProductType(const OpCall& call) {
  // A sum that a product is added to may be wider; attention's heads that are one tensor stand first.
  return call.operands.size() > 1 && IsFloating(call.in(1).dtype) ? call.in(1).dtype : call.in(0).dtype;
}

std::optional<AttentionMask> MaskOfAttention(const Op& op, const OpCall& call) {
  const std::optional<AttentionOperands> at = AttentionOperandsOf(op.name(), *call.attrs, call.operands.size());
  if (!at.has_value()) return std::nullopt;
  const bool is_any = at->document_start >= 0 || at->sinks >= 0 || at->earlier_out >= 0 || at->step >= 0 ||
                      at->key_bias >= 0 || at->bias >= 0 || call.attr<int64_t>("window") > 0 ||
                      call.attr<double>("softcap") > 0 || call.attrs->count("alibi_slopes") > 0 ||
                      call.attr<int64_t>("zigzag") > 1 || call.attr<int64_t>("block") > 0 ||
                      call.in(at->q).dims.back() != call.in(at->v).dims.back();
  return is_any ? AttentionMask::kAny : AttentionMask::kPlain;
}

AttentionExtras ExtrasOfAttention(const Op& op, const OpCall& call, double flops) {
  const AttentionOperands at = *AttentionOperandsOf(op.name(), *call.attrs, call.operands.size());
  const auto head_dim = static_cast<double>(call.in(at.q).dims.back()),
             value_dim = static_cast<double>(call.in(at.v).dims.back());
  // As AttentionFlops counts them.
  const bool makes_scores_again = at.is_gradient && op != "attention_bias_grad";  // whose flops are of those alone
  const double scores = flops / ((makes_scores_again ? 4 : 2) * (head_dim + value_dim));
  return {scores, makes_scores_again ? 2 * head_dim * scores : 0};
}

bool IsWholeAllReduce(const Graph& graph, const Node& node, const GroupShape& group, const CollectiveRanks& ranks) {
  if (!IsAllReduce(node)) return false;
  const int64_t elements = graph.type(node.operands[0]).num_elements();
  if (ranks.on_cpus) return elements <= WholeAllReduceElements(group.size, group.num_nodes());
  return IsOwnSum(graph, node, ranks) && elements <= WholeAllReduceElementsOnGpus(group.size, group.num_nodes());
}

int64_t SentBytes(const Graph& graph, const Node& node, const Mesh& mesh, const CollectiveRanks& ranks) {
  const GroupShape group = GroupOf(node, mesh, ranks.devices_per_node);
  const int64_t n = group.size;
  if (n < 2) return 0;
  if (IsAllReduce(node)) {
    const TensorType &in = graph.type(node.operands[0]), &out = graph.type(node.results[0]);
    if (IsWholeAllReduce(graph, node, group, ranks)) return (group.in_node + group.num_nodes() - 2) * in.bytes();
    return (n - 1) * (in.bytes() + out.bytes()) / n;
  }
  if (node.op == Op::kAllGather) return (n - 1) * graph.type(node.operands[0]).bytes();
  if (node.op == Op::kReduceScatter)
    return (n - 1) * graph.type(node.results[0]).num_elements() * ByteSize(graph.type(node.operands[0]).dtype);
  if (node.op == Op::kAllToAll) return (n - 1) * graph.type(node.operands[0]).bytes() / n;
  if (node.op == Op::kRotateBlocks) return graph.type(node.operands[0]).bytes();
  return 0;
}

int64_t PackedBytes(const Graph& graph, const Node& node, const Mesh& mesh, const CollectiveRanks& ranks) {
  if (node.operands.empty() || node.results.empty()) return 0;
  const GroupShape group = GroupOf(node, mesh, ranks.devices_per_node);
  if (group.size < 2) return 0;
  if (IsAllReduce(node)) return PackedForAllReduce(graph, node, group, ranks);
  if (node.op == Op::kAllToAll) return PackedForAllToAll(graph, node, group);
  if (node.op == Op::kAllGather || node.op == Op::kReduceScatter)
    return PackedForShards(graph, node, group, mesh, ranks);
  return 0;
}

double ModelFlops(const Program& program, const OpTable& ops) {
  double total = 0;
  for (const Call& call : program.step) {
    const Graph* graph = program.FindGraph(call.graph);
    if (graph == nullptr) continue;
    for (const Node& node : graph->nodes) {
      const OpDef* def = ops.Find(node.op);
      if (def == nullptr || !def->is_matmul || def->is_repeat || !def->flops || node.recompute > 0) continue;
      total += def->flops(LogicalCallOf(*graph, node));
    }
  }
  return total;
}

StepCost StepCostOf(const Program& program, const OpTable& ops, const DeviceProfile& device, int64_t rank) {
  const TargetKind* kind = FindTargetKind(device.kind);
  const CollectiveRanks ranks{kind != nullptr && kind->shares_cores, device.sums_in_order, device.devices_per_machine,
                              rank};
  std::map<std::string, StepCost> costs;
  for (const Graph& graph : program.graphs) costs[graph.name] = CostOf(program, graph, ops, device, ranks);
  StepCost step;
  for (const Call& call : program.step) Add(costs[call.graph], step);
  return step;
}

}  // namespace tacc::graph
